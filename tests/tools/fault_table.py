"""What comes of an episode when something goes wrong in one of its steps: declared here, kept as docs/faults.md.

The page has the table of `gym.failures` too.

`python -m tests.tools.fault_table > docs/faults.md` writes the page. tests/e2e/test_fault_table.py does each fault to
each step of real runs, compares, and tells when the page is stale.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gym.failures import POLICIES, Stage

Step = Literal[
    "run", "seed_resources", "seed_agent", "activate", "model", "tool", "close_agent", "verify", "close_resources"
]
Fault = Literal["killed", "dropped_before", "dropped_after", "late", "error", "malformed", "interrupted", "run_killed"]
How = Literal["reward", "asked again", "tried again", "failed", "continued"]


@dataclass(frozen=True)
class Asked:
    """What a step asks for.

    Attributes:
        server: The instance that is asked.
        path: Pattern of the request's path.
        stage: What failures of the step carry.
        shown: The step in words.
    """

    server: str
    path: str
    stage: Stage | None
    shown: str


STEPS: dict[Step, Asked] = {
    "run": Asked("experiment", "/run$", None, "the run asks for the episode"),
    "seed_resources": Asked("benchmark", "/seed_session$", "seed", "Resources is seeded"),
    "seed_agent": Asked("agent", "/agent_sessions$", "seed", "the agent's session is opened"),
    "activate": Asked("agent", "/responses$", "agent", "the agent is activated"),
    "model": Asked("policy_model", "/responses$", "agent", "the agent asks the model"),
    "tool": Asked("benchmark", "/shell$", "agent", "the agent calls a tool"),
    "close_agent": Asked("agent", "/agent_sessions/close$", "cleanup", "the agent is closed"),
    "verify": Asked("benchmark", "/verify$", "verification", "the outcome is verified"),
    "close_resources": Asked("benchmark", "/close_session$", "cleanup", "Resources is closed"),
}
FAULTS: dict[Fault, str] = {
    "killed": "its server is killed",
    "dropped_before": "the request is lost",
    "dropped_after": "the answer is lost",
    "late": "it takes too long",
    "error": "answer 500",
    "malformed": "no JSON",
    "interrupted": "Ctrl-C",
    "run_killed": "the run is killed",
}


@dataclass(frozen=True)
class Cell:
    """One fault in one step."""

    step: Step
    fault: Fault


@dataclass(frozen=True)
class Outcome:
    """What comes of an episode; `kind` is that of the failure that is recorded."""

    how: How
    kind: str | None = None

    def __str__(self) -> str:
        return self.how + (f": `{self.kind}`" if self.kind else "")


ASKED_AGAIN = Outcome("asked again")
CONTINUED = Outcome("continued")


def _again(kind: str) -> Outcome:
    return Outcome("tried again", kind)


def _failed(kind: str) -> Outcome:
    return Outcome("failed", kind)


UNREACHABLE = _again("server_unreachable")
CLEANUP = _again("cleanup_failed")
MALFORMED = _again("malformed_answer")
IN_TIME = _failed("episode_timeout")

ROWS: dict[Step, tuple[Outcome, ...]] = {
    "run": (UNREACHABLE, UNREACHABLE, UNREACHABLE, UNREACHABLE, _failed("internal"), MALFORMED),
    "seed_resources": (ASKED_AGAIN, ASKED_AGAIN, ASKED_AGAIN, IN_TIME, _failed("internal"), MALFORMED),
    "seed_agent": (ASKED_AGAIN, ASKED_AGAIN, ASKED_AGAIN, IN_TIME, _failed("internal"), MALFORMED),
    "activate": (UNREACHABLE, ASKED_AGAIN, ASKED_AGAIN, IN_TIME, _failed("agent_error"), MALFORMED),
    "model": (UNREACHABLE, UNREACHABLE, UNREACHABLE, _failed("agent_timeout"), _again("provider_error"), MALFORMED),
    "tool": (UNREACHABLE, UNREACHABLE, UNREACHABLE, _failed("agent_timeout"), _again("tool_server_error"), MALFORMED),
    "close_agent": (CLEANUP, ASKED_AGAIN, ASKED_AGAIN, CLEANUP, CLEANUP, CLEANUP),
    "verify": (UNREACHABLE, ASKED_AGAIN, ASKED_AGAIN, IN_TIME, _again("verifier_crashed"), MALFORMED),
    "close_resources": (ASKED_AGAIN,) * 6,
}
EXPECTED: dict[Cell, Outcome] = {
    Cell(step, fault): outcome
    for step, row in ROWS.items()
    for fault, outcome in zip(FAULTS, (*row, CONTINUED, CONTINUED), strict=True)
}
"""What each fault in each step comes to."""

HEAD = """\
# When something goes wrong

<!-- Written by `python -m tests.tools.fault_table > docs/faults.md`. Change the table there, not this file. -->

A test does each of these faults to each step of an episode, in runs whose servers have processes of their own
(`tests/e2e/test_fault_table.py`), and compares what comes of it with this table. In every cell, every task is accounted
for exactly once, and no sandbox, process or port is left; a try that failed leaves nothing to the next one.

- *asked again*: the same request is made once more, within the try. The episode has its reward, and no failure.
- *tried again*: the try fails, by the kind that is named, and is kept in `failures.jsonl`. The next one has a reward.
- *failed*: another try could not help. The episode is counted as failed, never as a reward.
- *continued*: nothing is recorded of the episode. The same command, given again, runs it, and has its reward.

"""
TAIL = """
- The stage is what the failure carries. A run that loses an episode knows none.
- *Its server is killed*: with `kill -9`, when it has done the work and not answered yet; the environment server and the
  agent while the model is asked. See [hosting.md](hosting.md) for servers that die.
- *It takes too long*: longer than the bound that applies, and then it comes all the same, and is refused. That is
  `metadata.agent_timeout_sec` for the model and the tools, `cleanup_timeout_seconds` for what is closed, else
  `default_episode_timeout_seconds`. A run waits for an episode as long as that and all cleanups may take.
- *The request is lost*: the connection breaks before it arrives. *The answer is lost*: it breaks when the work is done.
  Whoever asks cannot tell the two apart. A session keeps what was done in it, so its server is asked again: it joins
  the work, or has the answer. Models and tools might do it twice, so they are not.
- A run that loses an episode closes what is left of it: in its next try, or at once where none follows.
- *The run is killed*: with `kill -9`, and started again while its servers still end.
- An agent that cannot be closed may still be at work, so nothing is verified. Resources is closed when all is done: the
  reward stands, and what could not be freed is in the row's `cleanup_failures`.

## Kinds of failure

The table of `gym/failures.py`. A failed episode has one of these kinds, and never a reward.

- *tried again*: another try may help, up to `max_attempts`.
- *graded*: it is the policy's doing, so no failure comes of it: what the agent had done by then is verified.
- *reward valid*: the reward counts, where there is one all the same.
- *stops the run*: three in a row show that no further episode can succeed.

"""


def render() -> str:
    """The page."""
    return HEAD + "\n".join(_table()) + "\n" + TAIL + "\n".join(_kinds()) + "\n"


def _table() -> Iterator[str]:
    yield "| step | stage | " + " | ".join(FAULTS.values()) + " |"
    yield "| --- " * (2 + len(FAULTS)) + "|"
    for step, asked in STEPS.items():
        outcomes = [str(EXPECTED[Cell(step, fault)]) for fault in FAULTS]
        yield f"| {asked.shown} | {asked.stage or '-'} | " + " | ".join(outcomes) + " |"


def _kinds() -> Iterator[str]:
    yield "| kind | what happened | tried again | graded | reward valid | stops the run |"
    yield "| --- " * 6 + "|"
    for kind, policy in POLICIES.items():
        answers = (policy.retry, policy.graded, policy.reward_valid, policy.stops_run)
        yield f"| `{kind}` | {policy.means} | " + " | ".join("yes" if answer else "-" for answer in answers) + " |"


if __name__ == "__main__":
    sys.stdout.write(render())
