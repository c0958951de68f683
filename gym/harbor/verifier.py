"""Runs the tests of a step, and reads what they say: in the agent's sandbox or in one of their own.

The tests come into the sandbox after the agent has ended; what lay in their place, and in that of their results, is
removed before. Only the reward file counts, whatever the exit code. A verifier that fails has a kind of failure of its
own, and no reward.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gym.failures import EpisodeFailure
from gym.harbor import aside, programs, shared
from gym.harbor.boxes import RUN_SCRIPT, Box, told
from gym.harbor.rewards import Rewards, read_rewards, report_file
from gym.harbor.task import VerifierPhase
from gym.sandbox.interface import ExecResult

TESTS, LOGS = "/tests", "/logs/verifier"
STDOUT = f"{LOGS}/test-stdout.txt"
OUTPUT_BYTES = 16 * 1024
RESULTS = ("reward.json", "reward.txt", "test-stdout.txt")
UNREAD = ("reward_missing", "reward_empty", "reward_unreadable")
REWARD_BYTES = 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024
log = logging.getLogger(__name__)

# $1 owner of the results, empty for everybody; $2 when the agent came, empty where none did; then folders to empty. A
# link in their place leads elsewhere. Links of the agent's to what they are about to hold lead nowhere while they are
# gone: they are printed and removed.
EMPTY = r"""
owner=$1 since=$2
shift 2
[ ! -L /logs ] || rm -f /logs
for folder in "$@"; do
    [ -e "$folder" ] || [ -L "$folder" ] || continue
    # Out of the way at once: somebody may go on writing there.
    mv -- "$folder" "/.gym-old-$$" 2>/dev/null || { rm -rf -- "$folder" || exit 1; }
    rm -rf -- "/.gym-old-$$"
done
[ -z "$since" ] || find / -xdev -xtype l -newerct "@$since" -print 2>/dev/null | while IFS= read -r link; do
    case $(readlink -m -- "$link")/ in
        /tests/* | /logs/verifier/*) rm -f -- "$link" && echo "$link" ;;
    esac
done
mkdir -p -- "$@" || exit 1
if [ "$owner" ]; then chown "$owner" /logs/verifier && chmod 755 /logs/verifier; else chmod 777 /logs/verifier; fi
"""

RUN = rf"""
exec >"$2" 2>&1 </dev/null
{RUN_SCRIPT}
"""


@dataclass
class Outcome:
    """What a verifier said.

    Attributes:
        output: What the test script wrote, the end of it where it is long.
        notes: What is worth knowing about how it came about.
    """

    rewards: Rewards
    output: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Order:
    """A verification.

    Attributes:
        env: Variables of the test script, filled in.
        kept: Folder of this machine for what the verifier leaves.
        keeps_services: What the agent has left running goes on.
        mask: Takes secrets out of what is kept.
    """

    box: Box
    phase: VerifierPhase
    env: Mapping[str, str]
    timeout_seconds: float
    kept: Path
    mask: Callable[[str], str]
    keeps_services: bool = True

    @property
    def script(self) -> str:
        """The test script, as far as it lies on this machine."""
        places = [*self.phase.tests]
        if not places and self.phase.container is not None and self.phase.container.context is not None:
            places = [self.phase.container.context]
        found = [place / "test.sh" for place in places if (place / "test.sh").is_file()]
        return found[-1].read_text(encoding="utf-8", errors="replace") if found else ""


async def verify_apart(order: Order) -> Outcome:
    """Verifies in a sandbox that the agent has never seen.

    Raises:
        EpisodeFailure: The verifier failed; nothing can be said about the outcome.
    """
    await _set_up(order, None)
    return await _grade(order, order.env)


async def verify_shared(order: Order, before: shared.Before) -> Outcome:
    """Verifies in the agent's sandbox, on what the agent left there.

    What serves nothing is ended first. Where something that serves writes into the place of the tests or of their
    results, or changes programs, everything that the agent left running is ended, and the tests run again.

    Raises:
        EpisodeFailure: The verifier failed; nothing can be said about the outcome.
    """
    box = order.box
    # First of all: the next step asks these programs.
    notes = await programs.mend(box, before.programs)
    if ended := await shared.end(box, before, keeps_services=order.keeps_services):
        what = "that serves nothing " if order.keeps_services else ""
        notes.append(f"what the agent left running {what}was ended: {shared.told(ended)}")
    if services := await shared.since(box, before):
        notes.append(f"the agent left running: {shared.told(one.name for one in services)}")
    notes += await _prepare(order, before)
    env = dict(order.env)
    if forged := await programs.passed_over(box, before.programs):
        notes.append(f"forgeries stand in front of {', '.join(forged)[:200]}; the tests use those of the image")
        env = {"PATH": await programs.front(box, forged), **env}
    clean = not services
    if not clean and await shared.is_disturbed(box, LOGS):
        notes += await _ended(order, before, "results appeared before the tests ran")
        clean = True
    try:
        outcome = await _grade(order, env)
    except EpisodeFailure as failure:
        if clean or not (failure.kind in UNREAD or await _meddled(order, before)):
            raise
    else:
        if clean or not await _meddled(order, before):
            outcome.notes[:0] = notes
            return outcome
    notes += await _ended(order, before, "tests, results or programs were changed while the tests ran")
    outcome = await _grade(order, env)
    outcome.notes[:0] = notes
    return outcome


async def forget(box: Box, phase: VerifierPhase) -> None:
    """Removes tests and results from a sandbox in which an agent goes on."""
    folders = [LOGS, TESTS] if phase.tests else [LOGS]
    await box.as_root('rm -rf -- "$@"; mkdir -p "$1"; chmod 777 "$1"', *folders)


async def _meddled(order: Order, before: shared.Before) -> bool:
    """Whether somebody changes tests or programs, or writes results when the tests are over."""
    box = order.box
    await box.as_root('rm -rf -- "$1"; mkdir -p -- "$1"', LOGS)
    if await shared.is_disturbed(box, LOGS) or await shared.is_changed(box, list(order.phase.tests), TESTS):
        return True
    return bool(await programs.mend(box, before.programs))


async def _ended(order: Order, before: shared.Before, why: str) -> list[str]:
    await shared.end(order.box, before)
    log.warning("%s: %s", order.box.name, why)
    return [f"{why}: everything that the agent left running was ended", *await _prepare(order, before)]


async def _prepare(order: Order, before: shared.Before) -> list[str]:
    """Everything as the tests need it, but for what runs; returns notes on what had to be done."""
    box = order.box
    notes = await programs.mend(box, before.programs)
    notes += await aside.set_aside(box, before.programs, before.seconds)
    await box.make_workdir()
    await _set_up(order, before)
    return notes


async def _set_up(order: Order, before: shared.Before | None) -> None:
    """Empties the places of tests and results, and brings the tests; `before` where an agent was here."""
    box, phase = order.box, order.phase
    folders = [LOGS, TESTS] if phase.tests else [LOGS]
    owner = box.user or "" if phase.user is None else str(phase.user)
    emptied = await box.as_root(EMPTY, owner, before.seconds if before else "", *folders)
    if emptied.exit_code:
        raise _failed("verifier_crashed", f"the place of the results cannot be emptied: {told(emptied)}")
    if emptied.stdout:
        log.warning("%s: links to the verifier were removed: %s", box.name, emptied.stdout_text.split())
    for folder in phase.tests:
        await box.put(folder, TESTS)
    await box.as_root("chmod -R a+rX /tests; chmod a+x /tests/test.sh")


async def _grade(order: Order, env: Mapping[str, str]) -> Outcome:
    words = ["/bin/sh", "-c", RUN, "sh", f"{TESTS}/test.sh", STDOUT]
    result = await order.box.run(words, user=order.phase.user, env=env, timeout_seconds=order.timeout_seconds)
    left, odd = await _take(order)
    output = order.mask((left.get("test-stdout.txt") or b"")[-OUTPUT_BYTES:].decode("utf-8", "replace").strip())
    if result.timed_out:
        raise _failed("verifier_timeout", f"the tests were not done in {order.timeout_seconds:g} s{_end(output)}")
    for name in RESULTS[:2]:
        if name in odd:
            what = f"{name} is a link, a folder or something else than a file"
            raise _failed("reward_unreadable", f"{what}{_how(result, output)}")
    try:
        rewards = read_rewards(left.get("reward.json"), left.get("reward.txt"))
    except EpisodeFailure as failure:
        raise _failed(failure.kind, f"{failure.message}{_how(result, output)}") from failure
    await _refuse_untested(order, rewards, output)
    return Outcome(rewards, output)


async def _refuse_untested(order: Order, rewards: Rewards, output: str) -> None:
    """No reward where the script asked for a report of its tests, and there is none: they have not run."""
    report = report_file(order.script)
    if report is None or any(rewards.values()):
        return
    there = await order.box.as_root('[ -e "$1" ]', report)
    if there.exit_code:
        what = f"no test has run: the test script gave 0 and left no {report}, as where its tools cannot be installed"
        network = "" if order.phase.network.mode == "public" else f" (its network is {order.phase.network.mode})"
        raise _failed("verifier_tools_missing", f"{what}{network}{_end(output)}")


async def _take(order: Order) -> tuple[dict[str, bytes], set[str]]:
    """Copies what the verifier left to this machine.

    Returns:
        The files that say something about the outcome, and the names of those that are none.
    """
    await asyncio.to_thread(shutil.rmtree, order.kept, ignore_errors=True)
    left_out: list[str] = []
    try:
        left_out = await order.box.sandbox.download(LOGS, order.kept, max_bytes=KEPT_BYTES)
    except OSError as error:
        what = f"more than {KEPT_BYTES} bytes" if error.errno == errno.EFBIG else str(error)
        log.warning("%s: the files of the verifier are not kept: %s", order.box.name, what)
        await asyncio.to_thread(order.kept.mkdir, parents=True, exist_ok=True)
        for name in RESULTS:
            try:
                content = await _end_of(order.box, name)
                await asyncio.to_thread((order.kept / name).write_bytes, content)
            except FileNotFoundError:
                continue
            except OSError:
                left_out.append(name)
    return await asyncio.to_thread(_read, order, set(left_out))


async def _end_of(box: Box, name: str) -> bytes:
    """A result, whole; of what the tests wrote, the end."""
    if name == "test-stdout.txt":
        return (await box.as_root('tail -c "$1" -- "$2"', str(OUTPUT_BYTES), STDOUT)).stdout
    return await box.sandbox.read_file(f"{LOGS}/{name}", REWARD_BYTES)


def _read(order: Order, left_out: set[str]) -> tuple[dict[str, bytes], set[str]]:
    """The results, and those that are no files; what is kept of them is masked."""
    paths = [path for path in order.kept.rglob("*") if path.is_file() and not path.is_symlink()]
    found = {path.name: path.read_bytes() for path in paths if path.parent == order.kept and path.name in RESULTS}
    odd = {path.name for path in order.kept.iterdir() if path.name in RESULTS and path.name not in found}
    for path in paths:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        if (masked := order.mask(text)) != text:
            path.write_bytes(masked.encode("utf-8", "surrogateescape"))
    return found, odd | (left_out & {*RESULTS})


def _how(result: ExecResult, output: str) -> str:
    return f"; exit code {result.exit_code}{_end(output)}"


def _end(output: str) -> str:
    lines = output.splitlines()
    return f"; its last line: {lines[-1][:300]}" if lines else "; it wrote nothing"


def _failed(kind: str, message: str) -> EpisodeFailure:
    return EpisodeFailure(kind, message, stage="verification")
