"""Folders as tar streams, and hostile ones."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym.sandbox.archive import MAX_DEPTH, pack, unpack
from gym.testing.sandbox_conformance.files import NAMES, snapshot


def packed(source: Path) -> io.BytesIO:
    return io.BytesIO(b"".join(pack(source, (0, 0))))


def stream(*entries: tuple[str, Callable[[tarfile.TarInfo], bytes | None]]) -> io.BytesIO:
    """A tar stream of any entries."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, change in entries:
            info = tarfile.TarInfo(name)
            content = change(info) or b""
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    made.seek(0)
    return made


def file(content: bytes = b"x") -> Callable[[tarfile.TarInfo], bytes]:
    return lambda info: content


def link(target: str, kind: bytes = tarfile.SYMTYPE) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = kind, target

    return change


def special(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type = kind

    return change


def test_a_tree_goes_there_and_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    for name in NAMES:
        (source / "sub" / name).write_text(ascii(name))
    (source / "tool").write_bytes(bytes(3_000_001))
    (source / "tool").chmod(0o755)
    (source / "link").symlink_to("sub/plain")
    deep = source
    for _ in range(60):
        deep = deep / "deeper-and-deeper"
    deep.mkdir(parents=True)
    assert unpack(packed(source), tmp_path / "back") == []
    assert snapshot(tmp_path / "back") == snapshot(source)
    with tarfile.open(fileobj=packed(source)) as archive:
        assert {(item.uid, item.gid) for item in archive.getmembers()} == {(0, 0)}


@given(
    st.dictionaries(
        st.text("ab-.é \n", min_size=1, max_size=120).filter(lambda name: name not in (".", "..")),
        st.binary(max_size=2000),
        max_size=6,
    )
)
def test_any_files(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "source").mkdir()
    for name, content in files.items():
        (folder / "source" / name).write_bytes(content)
    assert unpack(packed(folder / "source"), folder / "back") == []
    assert {path.name: path.read_bytes() for path in (folder / "back").iterdir()} == files


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match="not a file, folder or link"):
        packed(tmp_path)


@pytest.mark.parametrize(
    ("entries", "left_out", "there"),
    [
        ([("../out", file()), ("a/../../out", file())], ["../out", "a/../../out"], set()),
        ([("/etc/file", file())], [], {"etc", "etc/file"}),
        ([("l", link("/etc/passwd")), ("m", link("../x")), ("n", link("a/../b"))], ["l", "m", "n"], set()),
        ([("d", link("e")), ("d/file", file())], ["d/file"], {"d"}),
        ([("e/f", file()), ("d", link("e")), ("d/f", file())], ["d/f"], {"e", "e/f", "d"}),
        ([("f", file()), ("f/g", file())], ["f/g"], {"f"}),
        ([("f", file()), ("f", file(b"later"))], [], {"f"}),
        ([("l", link("x")), ("l", file())], [], {"l"}),
        ([("f", file()), ("same", link("f", tarfile.LNKTYPE))], [], {"f", "same"}),
        ([("h", link("/etc/passwd", tarfile.LNKTYPE)), ("i", link("../x", tarfile.LNKTYPE))], ["h", "i"], set()),
        ([("l", link("x")), ("h", link("l", tarfile.LNKTYPE))], ["h"], {"l"}),
        ([("p", special(tarfile.FIFOTYPE)), ("c", special(tarfile.CHRTYPE))], ["c", "p"], set()),
        ([("/".join("d" * (MAX_DEPTH + 5)), file())], ["/".join("d" * MAX_DEPTH)], set()),
    ],
)
def test_hostile_streams(
    tmp_path: Path,
    entries: list[tuple[str, Callable[[tarfile.TarInfo], bytes | None]]],
    left_out: list[str],
    there: set[str],
) -> None:
    target = tmp_path / "in" / "target"
    assert unpack(stream(*entries), target) == left_out
    assert {str(path.relative_to(target)) for path in target.rglob("*")} == there
    assert sorted(path.name for path in tmp_path.rglob("*") if target not in path.parents) == ["in", "target"]


def test_no_special_bits_survive(tmp_path: Path) -> None:
    def change(info: tarfile.TarInfo) -> bytes:
        info.mode = 0o6777
        return b"x"

    unpack(stream(("f", change)), tmp_path)
    assert (tmp_path / "f").stat().st_mode & 0o7777 == 0o755


def test_the_bound(tmp_path: Path) -> None:
    assert unpack(stream(("a", file(b"12345")), ("b", file(b"12345"))), tmp_path / "fits", 10) == []
    with pytest.raises(OSError, match="more than 9 bytes") as caught:
        unpack(stream(("a", file(b"12345")), ("b", file(b"12345"))), tmp_path / "not", 9)
    assert caught.value.errno == errno.EFBIG
    copies = [("a", file(b"12345")), *((f"h{n}", link("a", tarfile.LNKTYPE)) for n in range(5))]
    with pytest.raises(OSError, match="more than 9 bytes"):
        unpack(stream(*copies), tmp_path / "copies", 9)


@pytest.mark.parametrize("content", [b"no archive" * 100, b"\xff" * 2000])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(OSError, match="no valid archive"):
        unpack(io.BytesIO(content), tmp_path)
