"""Runtime bundles: a harness installed once on this machine, into a folder that runs wherever it is put.

A bundle is made in a folder of its own and renamed when its program has said its pinned version; a build that breaks
leaves nothing. Builders of the same bundle wait for each other. The cache is `$GYM_CACHE/bundles`, by default
`~/.cache/gym/bundles`; a folder there is named by the content of its recipe, and never changes.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gym.errors import Problem, UserError
from gym.harness.recipes import InstallError, Recipe, architecture, run_client
from gym.sandbox.spec import Mount

MANIFEST = "bundle.json"
MOUNTED = "/gym"
"""Where sandboxes show bundles, each under its key: `/gym/<key>`."""

CHECK_SECONDS = 120.0
LOCK_POLL_SECONDS = 0.2
PROGRESS_SECONDS = 10.0

Progress = Callable[[Recipe, str], None]
"""Told what is being done for a recipe, one short line at a time."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bundle:
    """An installed runtime.

    Attributes:
        path: Its folder on this machine.
        size_bytes: Of all its files.
        build_seconds: How long its installation took.
        packages: Versions of what was asked for.
    """

    recipe: Recipe
    path: Path
    size_bytes: int
    build_seconds: float
    packages: dict[str, str]

    def command(self, at: str | PurePosixPath | None = None) -> list[str]:
        """Program and first arguments, for a bundle that is found `at` this path; default: where it is here."""
        root = str(self.path) if at is None else str(at)
        return [f"{root}/{part}" if (self.path / part).exists() else part for part in self.recipe.command]


def cache() -> Path:
    """The folder of all bundles, from the root."""
    base = os.environ.get("GYM_CACHE")
    return (Path(base).absolute() if base else Path("~/.cache/gym").expanduser()) / "bundles"


def installed(recipe: Recipe) -> Bundle | None:
    """The bundle of a recipe, if it is here and whole."""
    path = cache() / recipe.key
    try:
        known: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return Bundle(recipe, path, known["size_bytes"], known["build_seconds"], known["packages"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def prepare(recipe: Recipe, progress: Progress | None = None) -> Bundle:
    """The bundle of a recipe, built now if it is not here. Blocks; may be called from many processes at once.

    Raises:
        UserError: It cannot be installed on this machine, with the reason.
    """
    tell = progress or _log
    try:
        if (found := installed(recipe)) is not None:
            return found
        folder = cache()
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f".{recipe.key}.lock", lambda: tell(recipe, "is being installed by another process")):
            return installed(recipe) or _build(recipe, folder, tell)
    except InstallError as error:
        fix = "check that the registry can be reached, then run `gym env prefetch` with the same configuration"
        raise UserError(Problem(f"the runtime {recipe} cannot be installed: {error}", fix)) from error
    except OSError as error:
        raise UserError(Problem(f"the runtime {recipe} cannot be installed: {error}", f"cache: {cache()}")) from error


def recipes_of(instances: Iterable[Any]) -> dict[Recipe, list[str]]:
    """The runtimes that planned instances need, each with the names of the instances that need it."""
    found: dict[Recipe, list[str]] = {}
    for item in instances:
        runtime = getattr(item.server_class, "runtime", None)
        if runtime is not None:
            found.setdefault(runtime(item.config), []).append(item.name)
    return found


def prefetch(instances: Iterable[Any], progress: Progress | None = None) -> list[Bundle]:
    """Installs what planned instances (`gym.planning.resolve.Instance`) need; for `gym env prefetch`.

    Raises:
        UserError: All that could not be installed, after everything else was.
    """
    made: list[Bundle] = []
    problems: list[Problem] = []
    for recipe in recipes_of(instances):
        try:
            made.append(prepare(recipe, progress))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError(problems)
    return made


def mounts(instances: Iterable[Any]) -> tuple[Mount, ...]:
    """The runtimes of planned instances that work in sandboxes, as all sandboxes of a run are to show them."""
    agents = (item for item in instances if item.type == "responses_api_agents")
    inside = [item for item in agents if getattr(item.config, "execution", "sandbox") == "sandbox"]
    return tuple(Mount(cache() / recipe.key, f"{MOUNTED}/{recipe.key}") for recipe in recipes_of(inside))


def _log(recipe: Recipe, what: str) -> None:
    log.info("%s: %s", recipe, what)


@contextmanager
def _alone(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of a bundle; the kernel lets go of it when its holder dies."""
    with path.open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    waiting()
                told = True
                time.sleep(LOCK_POLL_SECONDS)
        yield


def _build(recipe: Recipe, folder: Path, tell: Progress) -> Bundle:
    """Installs, checks and publishes a bundle; the caller holds its lock."""
    for left in folder.glob(f".{recipe.key}.*.tmp"):  # of builders that were killed
        shutil.rmtree(left, ignore_errors=True)
    begun = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix=f".{recipe.key}.", suffix=".tmp", dir=folder))
    try:
        work.chmod(0o755)
        packages: dict[str, str] = {}
        for part in recipe.parts:
            with _telling(recipe, f"installing with {type(part).__name__.lower()}", tell):
                packages |= part.install(work, architecture())
        _arrange(recipe, work)
        tell(recipe, "checking")
        size = sum(path.lstat().st_size for path in work.rglob("*"))
        bundle = Bundle(recipe, work, size, round(time.monotonic() - begun, 1), packages)
        check(bundle)
        _write_manifest(bundle)
        shutil.rmtree(folder / recipe.key, ignore_errors=True)  # one that is damaged
        work.rename(folder / recipe.key)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    tell(recipe, f"installed: {size / 1e6:.0f} MB in {bundle.build_seconds:.0f} s")
    done = installed(recipe)
    assert done is not None
    return done


@contextmanager
def _telling(recipe: Recipe, what: str, tell: Progress) -> Iterator[None]:
    """Tells what is being done, and from time to time that it still is."""
    tell(recipe, what)
    begun, over = time.monotonic(), threading.Event()

    def tick() -> None:
        while not over.wait(PROGRESS_SECONDS):
            tell(recipe, f"{what}, {time.monotonic() - begun:.0f} s so far")

    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()


def _arrange(recipe: Recipe, work: Path) -> None:
    """Makes the recipe's links, and drops what it leaves out."""
    for pattern in recipe.leave_out:
        for path in sorted(work.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name, pattern in recipe.links:
        found = sorted(work.glob(pattern))
        if len(found) != 1:
            raise InstallError(f"{len(found)} files match {pattern} in the installed packages, instead of 1")
        link = work / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(found[0], link.parent))


def _write_manifest(bundle: Bundle) -> None:
    recipe = bundle.recipe
    said = {
        "name": recipe.name,
        "version": recipe.version,
        "architecture": architecture(),
        "needs_glibc": recipe.needs_glibc,
        "packages": bundle.packages,
        "size_bytes": bundle.size_bytes,
        "build_seconds": bundle.build_seconds,
    }
    (bundle.path / MANIFEST).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def check(bundle: Bundle) -> None:
    """Asks the program for its version, away from the user's files and, where bubblewrap works, from everything else.

    Raises:
        InstallError: It does not start, or is another version than the pinned one.
    """
    with tempfile.TemporaryDirectory(prefix="gym-check-") as home:
        env = {"PATH": "/usr/bin:/bin", "HOME": home}
        argv = [*bundle.command(), *bundle.recipe.version_arguments]
        said = run_client(argv, Path(home), env)
        _compare(bundle, said)
        bare = _bare(bundle, home)
        if bare is not None:
            _compare(bundle, run_client(bare, Path(home), env))


def _compare(bundle: Bundle, said: str) -> None:
    if bundle.recipe.version not in said:
        shown = " ".join(said.split())[:100] or "nothing"
        raise InstallError(f"the program says `{shown}` when it is asked for its version, not {bundle.recipe.version}")


def _bare(bundle: Bundle, home: str) -> Sequence[str] | None:
    """The same question in a sandbox that has the system's folders, the bundle under another path, and no network."""
    from gym.sandbox.providers.local import system
    from gym.sandbox.providers.local.bubblewrap import Installed, probe

    found = probe()
    if not isinstance(found, Installed):
        return None
    at = f"/{bundle.recipe.name}-runtime"
    mounts = [*system.folders(), (str(bundle.path), at)]
    return [
        *(found.executable, *found.namespaces),
        *(word for source, target in mounts for word in ("--ro-bind", source, target)),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", home, home, "--chdir", home),
        *("--", *bundle.command(at), *bundle.recipe.version_arguments),
    ]
