from __future__ import annotations

import pytest

from gym.launch.logs import ServerLog


@pytest.mark.parametrize(
    ("token", "line", "kept"),
    [
        ("", b"it broke\r\n", "it broke"),
        ("s3cret-token", b"asked with s3cret-token\n", "asked with ***"),
        ("s3cret-token", b"key gym-YWJj." + b"0" * 64 + b" used\n", "key *** used"),
    ],
)
def test_a_line_is_kept_without_secrets(token: str, line: bytes, kept: str) -> None:
    log = ServerLog(None, str, token)
    log.write(line)
    assert log.tail(1) == kept
