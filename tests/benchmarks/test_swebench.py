"""The rows of SWE-bench Pro, made from published ones: from files, and from a hub that stands on this machine."""

from __future__ import annotations

import io
import json
import runpy
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gym.errors import UserError
from resources_servers.swebench_pro.task import SwebenchProTask

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/swebench/pro/prepare.py"
ROW = {
    "instance_id": "instance_a-1",
    "repo": "nobody/a",
    "base_commit": "a" * 40,
    "problem_statement": "It breaks.",
    "requirements": "It must not.",
    "fail_to_pass": "['t::one']",
    "pass_to_pass": '["t::two"]',
    "selected_test_files_to_run": "['t.py']",
    "before_repo_set_cmd": "",
    "dockerhub_tag": "nobody.a-1",
    "patch": "",
}


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return runpy.run_path(str(SCRIPT))["prepare"]


def scripts(folder: Path) -> Path:
    for name, text in {"run_script.sh": "true", "parser.py": "pass"}.items():
        path = folder / "run_scripts" / "instance_a-1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_rows_of_a_file(prepare, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([ROW]))
    (tmp_path / "digests.json").write_text('{"nobody.a-1": "sha256:1"}')
    path = prepare(file="rows.json", assets=str(scripts(tmp_path / "assets")), digests="digests.json")
    (made,) = [json.loads(line) for line in Path(path).read_text().splitlines()]
    task = SwebenchProTask.model_validate(made)
    assert task.required == {"t::one", "t::two"}
    assert (task.image_digest, task.run_script, made["task_id"]) == ("sha256:1", "true", "instance_a-1")
    (message,) = made["responses_create_params"]["input"]
    for text in ("It breaks.", "It must not.", "none given", "nobody/a"):
        assert text in message["content"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"base_commit": ""}, "rows.jsonl:1  instance_a-1  no base_commit"),
        ({"instance_id": "instance_b"}, "no such file: "),
    ],
)
def test_a_row_that_lacks_something_is_told(prepare, tmp_path: Path, row: dict[str, str], told: str) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({**ROW, **row}))
    with pytest.raises(UserError, match=told):
        prepare(file="rows.jsonl", assets=str(scripts(tmp_path / "assets")))
    assert not (tmp_path / "benchmarks").exists()


class Hub(BaseHTTPRequestHandler):
    """Two pages of rows, and an archive of scripts; its second page fails once."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if "scripts" in self.path:
            return self.answer(archive())
        start = int(self.path.partition("offset=")[2].partition("&")[0])
        if start and len(self.asked) == 2:
            return self.send_error(503)
        rows = [{"row": ROW}] * (100 if start == 0 else 20)
        return self.answer(json.dumps({"num_rows_total": 120, "rows": rows}).encode())

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as opened:
        for name in ("run_scripts/instance_a-1/run_script.sh", "run_scripts/instance_a-1/parser.py", "README.md"):
            info = tarfile.TarInfo(f"repository-1/{name}")
            info.size = 4
            opened.addfile(info, io.BytesIO(b"true"))
    return packed.getvalue()


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_rows_of_a_hub_and_going_on_where_it_broke_off(prepare, hub: str) -> None:
    urls = {"rows_url": f"{hub}/rows?dataset=d", "assets_url": f"{hub}/scripts"}
    with pytest.raises(UserError, match=r"cannot be reached: .*503.*; put the rows of its split `test` to "):
        prepare(**urls)
    path = prepare(**urls)
    assert len(Path(path).read_text().splitlines()) == 120
    assert [asked.partition("offset=")[2].partition("&")[0] for asked in Hub.asked[:3]] == ["0", "100", "100"]
    asked = len(Hub.asked)
    prepare(**urls)
    assert len(Hub.asked) == asked
