"""What is done to the repository of a task inside a sandbox: hiding the solution, taking the patch, applying one."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from gym.failures import EpisodeFailure
from gym.sandbox.interface import ExecResult, Sandbox
from resources_servers.swebench_pro.task import SwebenchProTask

GIT_ENV = {
    # The repository belongs to whoever built the image.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
PLAIN = "-c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.autocrlf=false -c core.quotePath=false"

HIDE = """
set -eu
base=$1
git checkout -q --force --detach "$base"
git reset -q --hard "$base"
for remote in $(git remote); do git remote remove "$remote"; done
git for-each-ref --format='delete %(refname)' | git update-ref --stdin
rm -rf .git/logs .git/ORIG_HEAD .git/FETCH_HEAD .git/MERGE_HEAD .git/CHERRY_PICK_HEAD .git/objects/info/alternates
git worktree prune
git gc -q --prune=now
"""
"""Leaves the base commit and its history, and nothing from which the solution could be had."""

TAKE = """
set -eu
base=$1
export GIT_INDEX_FILE=$2
rm -f "$GIT_INDEX_FILE"
find . -mindepth 2 -name .git ! -path './.git/*' -prune -print | while IFS= read -r inner; do
    place=${{inner%/.git}}
    git ls-tree "$base" -- "${{place#./}}" | grep -q '^160000 ' || rm -rf -- "$inner"
done
git {plain} read-tree "$base"
git {plain} add -A .
git {plain} diff --cached --binary --no-ext-diff --no-textconv --no-renames --no-color "$base"
rm -f "$GIT_INDEX_FILE"
"""
"""The work tree as a patch, with an index of its own: that of the agent may be locked or broken. Repositories inside of
it that are no submodules would be no files, or let git fail: they become plain folders."""

PROTECTED = frozenset({"conftest.py", "sitecustomize.py", "usercustomize.py"})
"""Files that would change what the tests say rather than what the code does."""

SETTINGS = re.compile(
    r"\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|pyproject\.toml|jest-preset\.\w+|\.(mocharc|taprc|nycrc|jasmine)[\w.]*"
    r"|(jest|vitest|vite|karma|ava|playwright|cypress|wdio)[\w.-]*\.(config|conf|setup|preset|workspace)[\w.-]*"
)
"""Settings of test runners, which are graded as the base commit or the published solution has them."""

PACKAGE, RUNNER = "package.json", re.compile(rb'^\+.*"(jest|mocha|vitest|ava|tap|nyc)"\s*:', re.MULTILINE)


@dataclass(frozen=True)
class Section:
    """The part of a patch that changes one file."""

    path: str
    content: bytes

    @property
    def name(self) -> str:
        """Of the file, without its folders."""
        return PurePosixPath(self.path).name

    @property
    def is_new(self) -> bool:
        """The file was not there before."""
        return re.search(rb"^new file mode ", self.content.partition(b"\n@@")[0], re.MULTILINE) is not None


@dataclass(frozen=True)
class Repository:
    """A task's repository in a sandbox.

    Attributes:
        seconds: Bound of each command.
    """

    sandbox: Sandbox
    task: SwebenchProTask
    seconds: float

    async def run(self, script: str, *arguments: str, max_output_bytes: int = 1 << 20) -> ExecResult:
        """Runs a script of ours in the work directory."""
        return await self.sandbox.exec(
            ["sh", "-c", script, "gym", *arguments],
            env=GIT_ENV,
            timeout_seconds=self.seconds,
            max_output_bytes=max_output_bytes,
        )

    async def hide_solution(self) -> None:
        """Takes away what leads to the solution: remotes, branches, tags, reflogs, unreachable objects.

        Raises:
            EpisodeFailure: `sandbox_start`: it did not work, or the solution's commit can still be reached.
        """
        result = await self.run(HIDE, self.task.base_commit)
        if result.exit_code != 0:
            raise EpisodeFailure("sandbox_start", f"{self.task.instance_id}: git: {last_line(result)}", stage="seed")
        commit = self.task.solution_commit
        if commit and (await self.run('git cat-file -e "$1^{commit}"', commit)).exit_code == 0:
            what = f"the solution {commit[:12]} can still be reached from the base commit"
            raise EpisodeFailure("malformed_task", f"{self.task.instance_id}: {what}", stage="seed")

    async def untracked(self) -> frozenset[str]:
        """Files that git does not know."""
        listed = await self.run("git ls-files -z --others --exclude-standard", max_output_bytes=16 << 20)
        return frozenset(name.decode("utf-8", "surrogateescape") for name in listed.stdout.split(b"\0") if name)

    async def patch(self, limit_bytes: int) -> tuple[bytes, str | None]:
        """What was changed since the base commit; or why there is no patch, where the agent made it so."""
        script = TAKE.format(plain=PLAIN)
        index = f"/tmp/gym-index-{self.sandbox.id}"
        result = await self.run(script, self.task.base_commit, index, max_output_bytes=limit_bytes)
        if result.timed_out:
            return b"", f"git could not make a patch within {self.seconds:g} s"
        if result.exit_code != 0:
            return b"", f"git could not make a patch: {last_line(result)}"
        if result.stdout_truncated:
            return b"", f"the patch is longer than {limit_bytes} bytes"
        return result.stdout, None

    async def apply(self, patch: bytes) -> str | None:
        """Applies a patch to the base commit; says why where it does not fit."""
        reset = await self.run(
            'git checkout -q --force --detach "$1" && git reset -q --hard "$1"', self.task.base_commit
        )
        if reset.exit_code != 0:
            raise EpisodeFailure("verifier_crashed", f"{self.task.instance_id}: git: {last_line(reset)}")
        place = f"/tmp/gym-patch-{self.sandbox.id}"
        await self.sandbox.upload(patch, place)
        quoted = shlex.quote(place)
        applied = await self.run(f"git apply --whitespace=nowarn {quoted}")
        if applied.exit_code != 0:
            again = await self.run(f"git apply --whitespace=nowarn --ignore-whitespace {quoted}")
            return None if again.exit_code == 0 else last_line(applied)
        return None


def without(patch: bytes, dropped: Callable[[Section], bool]) -> tuple[bytes, list[str]]:
    """A patch without the sections of some files, and which these were."""
    found = list(sections(patch))
    kept = b"".join(section.content for section in found if not dropped(section))
    return kept, [section.path for section in found if dropped(section)]


def is_protected(task: SwebenchProTask, section: Section) -> bool:
    """Whether a change is left out: of the tests of the instance, and of files that change what tests say.

    Settings of a test runner count as such, unless the published solution changes the same file. A new package.json
    may be part of a solution, as long as it has no such settings.
    """
    if section.path in task.test_files or section.name in PROTECTED:
        return True
    if section.name == PACKAGE:
        sets_up = not section.is_new or RUNNER.search(section.content) is not None
    else:
        sets_up = SETTINGS.fullmatch(section.name) is not None
    return sets_up and section.path not in {own.path for own in sections(task.patch.encode())}


def is_pristine(pristine: Collection[str], section: Section) -> bool:
    """Whether the image has brought a file; of a repository of its own, git names the folder."""
    above = (f"{parent}/" for parent in PurePosixPath(section.path).parents)
    return section.path in pristine or any(folder in pristine for folder in above)


def sections(patch: bytes) -> Iterator[Section]:
    """The parts of a patch of git's, file by file."""
    starts = [match.start() for match in re.finditer(rb"^diff --git ", patch, re.MULTILINE)]
    for start, end in itertools.pairwise([*starts, len(patch)]):
        content = patch[start:end]
        yield Section(path_of(content.partition(b"\n")[0]), content)


def path_of(header: bytes) -> str:
    """The path in `diff --git a/PATH b/PATH`; both are the same, as renames are not looked for."""
    names = header.removeprefix(b"diff --git ").rstrip(b"\r")
    half = names[: len(names) // 2]
    if half.startswith(b'"'):
        half = re.sub(rb"\\([0-7]{3}|.)", _unescaped, half.strip(b'"'))
    return half.removeprefix(b"a/").decode("utf-8", "surrogateescape")


def _unescaped(match: re.Match[bytes]) -> bytes:
    said = match[1]
    if len(said) == 3:
        return bytes([int(said, 8)])
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}.get(said, said)


def last_line(result: ExecResult) -> str:
    """The last thing that a command said."""
    lines = (result.stderr_text.strip() or result.stdout_text.strip()).splitlines()
    return lines[-1][:300] if lines else f"exit code {result.exit_code}"
