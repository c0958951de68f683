"""Property: whatever links are planted, nothing outside of the tree is read or written."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym.sandbox.providers.local.collect import copy_out
from gym.sandbox.providers.local.tree import Tree

NAMES = ["outside", "secret", "source", "tree"]
PARTS = ["a", "b", "c", "..", ".", "outside", "secret", "tree"]
relative = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("/".join)
paths = st.one_of(relative, relative.map("/{}".format), relative.map("BASE/{}".format))
plants = st.lists(st.tuples(st.sampled_from(["dir", "file", "link"]), relative, paths), max_size=8)


def plant(base: Path, kind: str, where: str, target: str) -> None:
    """As the code in the sandbox would, by any path that leads to a place inside."""
    place = base / "tree" / where
    with suppress(OSError, RuntimeError):
        if not place.parent.resolve(strict=True).is_relative_to(base / "tree") or place.name in ("..", "."):
            return
        match kind:
            case "dir":
                place.mkdir()
            case "file":
                fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                os.write(fd, b"inside")
                os.close(fd)
            case _:
                place.symlink_to(target.replace("BASE", str(base)))


@pytest.mark.parametrize("rooted", [True, False])
@settings(deadline=None, max_examples=150)
@given(plants=plants, path=paths)
def test_nothing_outside_is_reached(rooted: bool, plants: list[tuple[str, str, str]], path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve()
        for name in ("tree", "outside", "secret", "source/a"):
            (base / name).mkdir(parents=True)
        (base / "source" / "a" / "b").write_text("written")
        (base / "outside" / "secret").write_text("secret")
        for planted in plants:
            plant(base, *planted)
        tree = Tree(base / "tree", "/" if rooted else str(base / "tree"), "/" if rooted else str(base / "tree"))
        path = path.replace("BASE", str(base))
        with suppress(OSError):
            assert b"secret" not in tree.read(path, 100)
        with suppress(OSError):
            copy_out(tree, path, base / "copy")
            assert not leads_out(base / "copy")
        with suppress(OSError):
            tree.write(b"written", path)
        with suppress(OSError):
            tree.copy_in(base / "source", path)
        assert sorted(os.listdir(base)) in (NAMES, sorted([*NAMES, "copy"]))
        assert os.listdir(base / "outside") == ["secret"]
        assert (base / "outside" / "secret").read_text() == "secret"
        assert os.listdir(base / "secret") == []


def leads_out(copy: Path) -> bool:
    return any(not Path(os.path.realpath(item)).is_relative_to(copy) for item in [copy, *copy.rglob("*")])
