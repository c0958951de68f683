"""Which lines of a requirements file ask for packages, and which of them are met here."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym.launch.requirements import lines_of, options_of, unmet


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pydantic>=2", [("pydantic>=2", True)]),
        ("Pydantic [email] >= 2 ; python_version > '3'", [("Pydantic [email] >= 2 ; python_version > '3'", True)]),
        ("pydantic>=99  # of the future", [("pydantic>=99", False)]),
        ("no-such-distribution-of-ours", [("no-such-distribution-of-ours", False)]),
        ("old; python_version < '3'", []),
        ("# only words\n\n   ", []),
        ("--index-url https://example.org\n-c bounds.txt\npydantic", [("pydantic", True)]),
        ("-r more.txt\npydantic", [("no-such-distribution-of-ours", False), ("pydantic", True)]),
        ("-e nemo-gym[dev] @ ../../", []),
        ("nemo_gym==0.7.0\nhydra-gym >= 0.1", []),
        ("gym-of-others", [("gym-of-others", False)]),
        ("./wheels/thing.whl", [("./wheels/thing.whl", None)]),
        ("-e ./thing", [("-e ./thing", None)]),
        ("pydantic==2.0 \\\n  --hash=sha256:00", [("pydantic==2.0    --hash=sha256:00", None)]),
    ],
)
def test_lines(text: str, expected: list[tuple[str, bool | None]], tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    (tmp_path / "more.txt").write_text("no-such-distribution-of-ours\n")
    assert [(line.text, line.met) for line in lines_of(tmp_path / "requirements.txt")] == expected
    assert unmet(tmp_path / "requirements.txt") == [text for text, met in expected if not met]


def test_options_are_for_the_installer_and_bounds_are_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "requirements.txt").write_text("--no-index\n-r ../more.txt\nthing\n")
    (tmp_path / "more.txt").write_text("-c bounds.txt\n--find-links wheels\n")
    assert options_of(tmp_path / "deep" / "requirements.txt") == [
        "--no-index",
        f"-c {tmp_path / 'bounds.txt'}",
        "--find-links wheels",
    ]
