# ruff: noqa: D103 (the name of a test says what it is about)
"""What every provider's sandboxes do with files."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import pytest

from gym.sandbox.interface import Sandbox
from gym.testing.sandbox_conformance.checks import check

NAMES = ["plain", "with space", "ünï-çødé-日本", "-dash", "new\nline", "quote'\"", "not-utf8-\udcff"]


@pytest.mark.parametrize("name", NAMES)
@check
async def test_binary_content_under_any_name(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    content = bytes(range(256)) * 10
    await sandbox.upload(content, name)
    assert (await sandbox.exec(["cat", "--", name])).stdout == content
    assert await sandbox.read_file(name, len(content)) == content
    await sandbox.exec(["cp", "--", name, f"{name}2"])
    assert await sandbox.download(f"{name}2", tmp_path / "down" / name) == []
    assert (tmp_path / "down" / name).read_bytes() == content


@check
async def test_targets(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"from a file")
    (tmp_path / "source").chmod(0o750)
    await sandbox.upload(tmp_path / "source", "new/parents/a")
    await sandbox.upload(b"#!/bin/sh\necho run", f"{sandbox.workdir}/b", mode=0o755)
    await sandbox.upload(b"plain", "c")
    await sandbox.upload(b"replaced", "c")
    listing = await sandbox.exec("stat -c %a new/parents/a b c; cat c; ./b; ls -A . new/parents | grep -c part")
    assert listing.stdout_text == "750\n755\n644\nreplacedrun\n0\n"
    with pytest.raises(IsADirectoryError):
        await sandbox.upload(b"x", "new")
    with pytest.raises(NotADirectoryError):
        await sandbox.upload(b"x", "c/below")
    with pytest.raises(FileNotFoundError):
        await sandbox.upload(tmp_path / "missing", "d")


@check
async def test_a_tree_goes_in_and_comes_out(sandbox: Sandbox, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    for name in NAMES:
        (tree / "sub" / name).write_text(ascii(name))
    (tree / "tool").write_text("#!/bin/sh\necho tool")
    (tree / "tool").chmod(0o755)
    (tree / "link").symlink_to("sub/plain")
    await sandbox.exec("mkdir -p place/sub; echo kept >place/sub/kept; echo old >place/tool")
    await sandbox.upload(tree, "place")
    assert (await sandbox.exec("place/tool; cat place/link place/sub/kept")).stdout_text == "tool\n'plain'kept\n"
    assert await sandbox.download("place", tmp_path / "out") == []
    (tree / "sub" / "kept").write_text("kept\n")
    assert snapshot(tmp_path / "out") == snapshot(tree)


def snapshot(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else None
        if path.is_dir()
        else (path.read_bytes(), os.access(path, os.X_OK))
        for path in folder.rglob("*")
    }


@check
async def test_large_files(sandbox: Sandbox, tmp_path: Path) -> None:
    content = secrets.token_bytes(5_000_001)
    (tmp_path / "large").write_bytes(content)
    await sandbox.upload(tmp_path / "large", "large")
    await sandbox.download("large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


@check
async def test_bounds_are_errors_not_cuts(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir d; printf 12345 >d/a; printf 12345 >d/b; truncate -s 1T sparse")
    assert await sandbox.read_file("d/a", 5) == b"12345"
    for path in ("d/a", "sparse"):
        with pytest.raises(OSError, match="longer than 4 bytes"):
            await sandbox.read_file(path, 4)
    assert await sandbox.download("d", tmp_path / "fits", max_bytes=10) == []
    for source, limit in (("d", 9), ("sparse", 2**20)):
        with pytest.raises(OSError, match="more than"):
            await sandbox.download(source, tmp_path / source, max_bytes=limit)
    assert not (tmp_path / "sparse").exists()


@check
async def test_missing_and_wrong_kinds(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir dir; mkfifo pipe")
    for path in ("missing", "dir/missing"):
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file(path, 10)
        with pytest.raises(FileNotFoundError):
            await sandbox.download(path, tmp_path / "x")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("dir", 10)
    for use in (sandbox.read_file("pipe", 10), sandbox.download("pipe", tmp_path / "x")):
        with pytest.raises(PermissionError, match="not a regular file"):
            await use


ESCAPES = ["../../../../../../../../etc/hostname", "a/../../b", "..", "deep/out/secret", "up/up/up/secret"]


@check
async def test_no_path_leads_out(sandbox: Sandbox, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    await sandbox.exec(["ln", "-s", str(outside), "out"])
    await sandbox.exec(["ln", "-s", str(outside / "secret"), "leak"])
    await sandbox.exec("mkdir deep; ln -s ../out deep/out; ln -s .. up; ln -s loop loop; ln -s / root")
    paths = [*ESCAPES, "out/secret", "leak", "loop", f"root{outside}/secret", f"up/../../..{outside}/secret"]
    for path in paths:
        with pytest.raises(OSError):
            await sandbox.read_file(path, 100)
        with pytest.raises(OSError):
            await sandbox.download(path, tmp_path / "stolen")
    for path in paths:
        # It may be written inside the sandbox, or refused; never outside.
        with suppress(OSError):
            await sandbox.upload(b"planted", path)
    assert snapshot(outside) == {"secret": (b"secret", False)}
    assert not (tmp_path / "stolen").exists()


@check
async def test_planted_links_are_replaced_not_followed(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("untouched")
    await sandbox.exec(["ln", "-s", str(tmp_path / "victim"), "result"])
    await sandbox.upload(b"result", "result")
    assert (tmp_path / "victim").read_text() == "untouched"
    assert (await sandbox.exec("test ! -L result && cat result")).stdout == b"result"


@check
async def test_links_that_stay_inside_are_followed(sandbox: Sandbox) -> None:
    await sandbox.exec('mkdir -p a/b; echo x >a/b/file; ln -s a/b short; ln -s ../b/file a/b/same; ln -s "$PWD/a" abs')
    for path in ("short/file", "a/b/same", "abs/b/file", "short/same"):
        assert await sandbox.read_file(path, 10) == b"x\n"
    await sandbox.upload(b"y", "short/new")
    assert (await sandbox.exec("cat a/b/new")).stdout == b"y"


@check
async def test_a_downloaded_tree_holds_no_way_out(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec(
        "mkdir -p t/d; cd t; echo x >f; chmod 6755 f; ln -s /etc/passwd abs; ln -s ../../x up; ln -s f fine;"
        " ln -s d/. d/here; mkfifo d/pipe"
    )
    assert await sandbox.download("t", tmp_path / "t") == ["abs", "d/pipe", "up"]
    assert snapshot(tmp_path / "t") == {"f": (b"x\n", True), "fine": "f", "d": None, "d/here": "d"}
    assert (tmp_path / "t" / "f").stat().st_mode & 0o7000 == 0


@check
async def test_depth_is_bounded(sandbox: Sandbox, tmp_path: Path) -> None:
    deep = await sandbox.exec("d=$PWD; for i in $(seq 300); do mkdir d && cd d || exit 1; done; cd $d; mkdir t; mv d t")
    assert deep.exit_code == 0
    assert await sandbox.download("t", tmp_path / "t") == ["/".join("d" * 200)]
