"""Makes the rows of SWE-bench Pro: the published data set, with the run script and the parser of each instance."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from gym.errors import Problem, UserError
from gym.tasks.rows import write_rows

FOLDER = Path("benchmarks/swebench/data")
PATH = FOLDER / "swebench_pro_benchmark.jsonl"
ROWS, ASSETS = FOLDER / "swebench_pro.jsonl", FOLDER / "SWE-bench_Pro-os"
PAGE = 100
ROWS_URL = "https://datasets-server.huggingface.co/rows?dataset=ScaleAI%2FSWE-bench_Pro&config=default&split=test"
COMMIT = "ca10a60"
ASSETS_URL = "https://codeload.github.com/scaleapi/SWE-bench_Pro-os/tar.gz/" + COMMIT
SCRIPTS = ("run_script.sh", "parser.py")

NEEDED = ("instance_id", "base_commit", "problem_statement", "fail_to_pass", "pass_to_pass", "dockerhub_tag")
ASK = """\
The repository in your current directory, {repo}, has the issue below. Change its code so that the issue is solved.

<issue>
{problem_statement}
</issue>

<requirements>
{requirements}
</requirements>

<interface>
{interface}
</interface>

Look at the code first, reproduce the issue where you can, make the change, and check it with the tests that are there.
Your work is graded by hidden tests of the repository: change its code, not its tests. Do not look for the published
solution.
"""


def prepare(
    file: str | None = None, assets: str | None = None, digests: str | None = None,
    rows_url: str = ROWS_URL, assets_url: str = ASSETS_URL,
) -> str:  # fmt: skip
    """Writes the rows; returns the path of their file.

    Args:
        file: The published rows as .jsonl, .json or .csv; default: `data/swebench_pro.jsonl`, which is downloaded.
        assets: A checkout of the repository that has `run_scripts/`; default: `data/SWE-bench_Pro-os`, likewise.
        digests: JSON file with the digest of each image tag, where images shall be pinned.
    """
    source, scripts = Path(file) if file else _rows(rows_url), Path(assets) if assets else _assets(assets_url)
    pinned = json.loads(Path(digests).read_text(encoding="utf-8")) if digests else {}
    rows, problems = [], []
    for number, given in _read(source):
        try:
            rows.append(row(given, scripts, pinned))
        except ValueError as error:
            problems.append(Problem(str(error), where=f"{source}:{number}", key=str(given.get("instance_id", ""))))
    if problems or not rows:
        raise UserError(problems or [Problem(f"{source} has no rows", "it holds the published data set")])
    write_rows(PATH, rows)
    return str(PATH)


def row(given: dict[str, Any], assets: Path, digests: dict[str, str]) -> dict[str, Any]:
    """An instance as a row.

    Raises:
        ValueError: A field or a script is missing.
    """
    if missing := [name for name in NEEDED if not given.get(name)]:
        raise ValueError(f"no {', '.join(missing)}")
    scripts = [assets / "run_scripts" / given["instance_id"] / name for name in SCRIPTS]
    if absent := [path for path in scripts if not path.is_file()]:
        raise ValueError(f"no such file: {absent[0]}")
    run_script, parser_script = (path.read_text(encoding="utf-8") for path in scripts)
    texts = {name: given.get(name) or "none given" for name in ("repo", "requirements", "interface")}
    ask = ASK.format(problem_statement=given["problem_statement"], **texts)
    return {
        **given,
        "task_id": given["instance_id"],
        "run_script": run_script,
        "parser_script": parser_script,
        "image_digest": digests.get(given["dockerhub_tag"]),
        "subset": "pro",
        "split": "test",
        "evaluator_commit": COMMIT,
        "responses_create_params": {"input": [{"role": "user", "content": ask}]},
    }


def _read(source: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The published rows, each with its number."""
    if not source.is_file():
        raise UserError(Problem(f"no such file: {source}", "it holds the published rows, as .jsonl, .json or .csv"))
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".csv":
        csv.field_size_limit(1 << 30)
        yield from enumerate(csv.DictReader(io.StringIO(text)), 1)
    elif source.suffix == ".json":
        yield from enumerate(json.loads(text), 1)
    else:
        yield from ((number, json.loads(line)) for number, line in enumerate(text.splitlines(), 1) if line.strip())


def _rows(url: str) -> Path:
    """The published rows, page by page; a page that is here is not asked for again."""
    if ROWS.is_file():
        return ROWS
    pages = FOLDER / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    total, start = 1, 0
    while start < total:
        page = pages / f"{start}.json"
        if not page.is_file():
            content = _fetched(f"{url}&offset={start}&length={PAGE}", f"put the rows of its split `test` to {ROWS}")
            _kept(page, content)
        said = json.loads(page.read_text(encoding="utf-8"))
        total, start = said["num_rows_total"], start + PAGE
    lines = [json.dumps(item["row"]) for at in range(0, total, PAGE) for item in _page(pages / f"{at}.json")]
    _kept(ROWS, ("\n".join(lines) + "\n").encode())
    return ROWS


def _page(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def _assets(url: str) -> Path:
    """The scripts of the instances, out of the archive of their repository."""
    if ASSETS.is_dir():
        return ASSETS
    archive = _fetched(url, f"put a checkout of scaleapi/SWE-bench_Pro-os at {COMMIT} to {ASSETS}")
    partial = ASSETS.with_suffix(".partial")
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if member.isfile() and inner.parts[:1] == ("run_scripts",) and inner.name in SCRIPTS:
                content = opened.extractfile(member)
                assert content is not None
                _kept(partial / inner, content.read())
    partial.rename(ASSETS)
    return ASSETS


def _kept(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(path.name + ".new")
    made.write_bytes(content)
    made.replace(path)


def _fetched(url: str, otherwise: str) -> bytes:
    import httpx

    try:
        answer = httpx.get(url, follow_redirects=True, timeout=120)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise UserError(
            Problem(f"{url.partition('?')[0]} cannot be reached: {str(error).splitlines()[0]}", otherwise)
        ) from error
    return answer.content
