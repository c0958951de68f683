"""Content digests. The expected ones were computed by Harbor's own packager, of the same files."""

from __future__ import annotations

import pytest

from gym.harbor.digest import dataset_digest, left_out, task_digest, task_files

BASE = {
    "task.toml": "[environment]\n",
    "instruction.md": "Do it.\n",
    "README.md": "About.\n",
    "environment/Dockerfile": "FROM x\n",
    "tests/test.sh": "true\n",
    "notes.txt": "not part of it\n",
    "solution/solve.sh": "true\n",
}
CLUTTER = ("tests/__pycache__/a.pyc", "tests/.DS_Store", "environment/a.swp", "solution/x~")
PLAIN = "9f7bd8a7ae700be210a134d6fc7d89ba13402840798c833f203e578bc2fd9fe9"


@pytest.mark.parametrize(
    ("more", "digest"),
    [
        ({}, PLAIN),
        (dict.fromkeys(CLUTTER, "x"), PLAIN),
        (
            {
                ".gitignore": "*.log\n!keep.log\nenvironment/big/\n",
                "tests/a.log": "x",
                "tests/keep.log": "y",
                "environment/big/data": "z",
                "tests/b.pyc": "counts now",
            },
            "44f490e55bfadd2bd0f042d4025646991bb512b46c516f7f9629c3ffc61d0436",
        ),
        (
            {
                "tests/.harborignore": "*.tmp\n/local/\n",
                "tests/a.tmp": "x",
                "tests/local/x": "y",
                "tests/deep/local/x": "z",
                "environment/a.tmp": "counts",
                "steps/one/tests/.harborignore": "*\n",
                "steps/one/tests/test.sh": "x",
            },
            "d9f3998351ed0b72a5095a9c9257bb4e60505ea581957d10ce62cc69c4481563",
        ),
        (
            {"trajectory.json": "{}", "steps/one/instruction.md": "One.\n"},
            "9ce05e34b94f8c71942ae9eeb1d1c12ac3a1885cd249c082cb471808e2b598c6",
        ),
    ],
)
def test_a_task_has_the_digest_that_harbor_gives_it(more, digest, project) -> None:
    folder = project({**BASE, **more})
    assert task_digest(folder) == f"sha256:{digest}"


def test_any_change_of_a_file_that_counts_changes_the_digest(project) -> None:
    folder = project(BASE)
    before = task_digest(folder)
    for name in task_files(folder):
        text = (folder / name).read_text()
        (folder / name).write_text(text + " ")
        assert task_digest(folder) != before
        (folder / name).write_text(text)
    (folder / "tests/test.sh").rename(folder / "tests/other.sh")
    assert task_digest(folder) != before


def test_what_a_harborignore_leaves_out(project) -> None:
    folder = project({**BASE, "tests/.harborignore": "*.tmp\n/local/\n", "tests/a.tmp": "", "tests/local/b/c": ""})
    assert left_out(folder) == ["tests/a.tmp", "tests/local/b/c"]


def test_the_digest_of_a_dataset_is_of_its_tasks_in_any_order_and_its_files() -> None:
    tasks = ["sha256:" + "b" * 64, "a" * 64]
    assert dataset_digest(tasks) == "sha256:b1da1a1755748f4703baeaa4ae58e2f42a25bd33aa67a0db9fd84d6b8767c492"
    assert dataset_digest(reversed(tasks), {"metric.py": "sha256:" + "c" * 64}) == (
        "sha256:ba78bd7936887d150126adc262af268fb81226f47c71f992bbb363ccc96c96f5"
    )
