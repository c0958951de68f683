"""An agent server under any order and overlap of seeds, activations, retries, closes, failures and lost callers.

Nothing runs twice, out of order, beside another activation of its session, or after the session began to close; whoever
asks for the same thing gets the same answer; nothing stays open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.failures import EpisodeFailure
from gym.servers.agent import AgentServer, AgentServerConfig, AgentSession
from gym.servers.base import Call, ServerError
from gym.servers.contract import ACTIVATION_HEADER, AgentCloseRequest, AgentSessionRequest
from tests.servers.parts import context

CONTINUES, ONCE = "continues", "once"
KINDS = st.sampled_from([CONTINUES, ONCE])
FRESH = st.sampled_from([True] * 5 + [False])
WORK = st.sampled_from(["open", "run", "close"])
ROLLOUTS = st.sampled_from(["r1"] * 7 + ["r2"])
STEPS = st.integers(0, 6)
LATER = st.sampled_from([-1, 0, 0, 1, 1, 1, 2])


@dataclass(eq=False)
class Life:
    """What happened to one session, from its opening to its end."""

    opened: bool = False
    running: bool = False
    failed: bool = False
    closing: bool = False
    closed: int = 0
    runs: list[str] = field(default_factory=list)


class Harness(AgentServer[AgentServerConfig]):
    """Works as slowly and as badly as it is told, and notes what it is asked to do."""

    continuations = frozenset({"resume_harness_session"})

    def __init__(self) -> None:
        super().__init__(AgentServerConfig(), context("agent"))
        self.gates = {name: asyncio.Event() for name in ("open", "run", "close")}
        self.failing: set[str] = set()
        self.lives: list[Life] = []
        self.wrong: list[str] = []

    async def _work(self, what: str) -> None:
        await self.gates[what].wait()
        if what in self.failing:
            raise EpisodeFailure("sandbox_lost", "it failed")

    async def open(self, session: AgentSession) -> None:
        session.state["life"] = life = Life()
        self.lives.append(life)
        await self._work("open")
        life.opened = True

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        life: Life = session.state["life"]
        wrong = {"before it opened": not life.opened, "beside another": life.running, "while it closed": life.closing}
        wrong["after one that failed"] = life.failed
        self.wrong += [f"activation {session.activation} ran {when}" for when, is_so in wrong.items() if is_so]
        life.running = True
        life.runs.append(str(request.input))
        life.failed = True
        try:
            await self._work("run")
            if request.input == "fail":
                raise EpisodeFailure("sandbox_lost", "it failed")
        finally:
            life.running = False
        life.failed = False
        said = {"life": self.lives.index(life), "index": session.activation, "text": request.input}
        return ResponsesResponse(metadata=said)

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        life: Life = session.state.get("life", Life())
        self.wrong += ["closed while it ran"] if life.running else []
        life.closing = True
        await self._work("close")
        life.closed += 1
        return {"source": "harness", "records": list(life.runs), "gaps": []}


class AgentMachine(RuleBasedStateMachine):
    """Drives the server from many callers."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.server = Harness()
        self.callers: list[tuple[str, str, Any, asyncio.Task[Any]]] = []
        self.closed: set[str] = set()
        self.answers: dict[tuple[int, int], str] = {}
        self.receipts: dict[str, Any] = {}

    def _call(self, what: str, session_id: str, asked: Any, work: Any, steps: int) -> None:
        late = session_id in self.closed
        self.callers.append((f"late {what}" if late else what, session_id, asked, self.loop.create_task(work)))
        self._steps(steps)

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self.loop.run_until_complete(asyncio.sleep(0))

    def _id(self, kind: str, fresh: bool) -> str:
        """The session of a kind that is not closed yet, or the one before it."""
        number = sum(name.startswith(kind) for name in self.closed)
        return f"{kind}-{number if fresh else max(0, number - 1)}"

    def _cookies(self, session_id: str) -> dict[str, str]:
        call = Call()
        self.server.cookie.issue(call, session_id)
        return call.set_cookies

    @initialize(gates=st.sets(WORK))
    def some_work_is_fast(self, gates: set[str]) -> None:
        for name in gates:
            self.server.gates[name].set()

    @rule(kind=KINDS, fresh=FRESH, rollout=ROLLOUTS, steps=STEPS)
    def seed(self, kind: str, fresh: bool, rollout: str, steps: int) -> None:
        session_id = self._id(kind, fresh)
        body = {"agent_session_id": session_id, "episode_id": {"rollout_id": rollout}}
        body["task_id"] = {"taskset": "t", "task_id": "1"}
        if kind == CONTINUES:
            body["continuation"] = {"mode": "resume_harness_session"}
        request = AgentSessionRequest.model_validate(body)
        self._call("seed", session_id, None, self.server.seed_session(request, Call()), steps)

    @rule(kind=KINDS, fresh=FRESH, asked=st.lists(st.tuples(LATER, st.integers(0, 5), STEPS), min_size=1, max_size=4))
    def activate(self, kind: str, fresh: bool, asked: list[tuple[int, int, int]]) -> None:
        """Asks for activations so much later than the last one; some with another body, some without their index."""
        session_id = self._id(kind, fresh)
        if fresh and session_id not in self.server.sessions:
            self.seed(kind, fresh, "r1", 4)
        for later, other, steps in asked:
            session = self.server.sessions.get(session_id)
            index = max(1, later + (session.activation if session else 0))
            text = {0: "another", 1: "fail"}.get(other, f"{index}")
            headers = {} if other == 2 and index == 1 else {ACTIVATION_HEADER: str(index)}
            work = self.server.activate(ResponsesRequest(input=text), Call(headers, self._cookies(session_id)))
            self._call("activate", session_id, (index, text), work, steps)

    @rule(kind=KINDS, fresh=FRESH, rollout=ROLLOUTS, steps=STEPS)
    def close(self, kind: str, fresh: bool, rollout: str, steps: int) -> None:
        session_id = self._id(kind, fresh)
        body = AgentCloseRequest.model_validate({"agent_session_id": session_id, "episode_id": {"rollout_id": rollout}})
        self._call("close", session_id, None, self.server.close_session(body, Call()), steps)

    @rule(what=st.sampled_from(["open", "run", "run", "close"]), is_open=st.sampled_from([True, True, False]))
    def turn_a_gate(self, what: str, is_open: bool) -> None:
        gate = self.server.gates[what]
        gate.set() if is_open else gate.clear()

    @rule(what=WORK, fails=st.sampled_from([True, False, False]))
    def work_fails(self, what: str, fails: bool) -> None:
        self.server.failing ^= {what} if fails != (what in self.server.failing) else set()

    @rule(index=st.integers(0, 20))
    def a_caller_goes_away(self, index: int) -> None:
        if self.callers:
            self.callers[index % len(self.callers)][3].cancel()

    @rule(steps=st.integers(1, 12))
    def time_passes(self, steps: int) -> None:
        self._steps(steps)

    @invariant()
    def nothing_runs_when_it_must_not(self) -> None:
        assert self.server.wrong == []
        for session in self.server.sessions.values():
            life = session.state.get("life", Life())
            assert session.activation in (len(life.runs), len(life.runs) + 1)  # the last one may not have begun yet
            assert session.activations.continues or session.activation <= 1

    @invariant()
    def outcomes_are_right(self) -> None:
        done = [caller for caller in self.callers if caller[3].done()]
        self.callers = [caller for caller in self.callers if not caller[3].done()]
        for what, session_id, asked, task in done:
            if not task.cancelled():
                self._check(what, session_id, asked, task)

    def _check(self, what: str, session_id: str, asked: Any, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        assert error is None or isinstance(error, EpisodeFailure | ServerError), error
        status = error.status if isinstance(error, ServerError) else None
        assert status in (None, 409) or (what, status) == ("activate", 422)
        if what in ("late seed", "late activate"):
            assert status is not None
        elif error is None and what == "activate":
            said = task.result().metadata
            assert (said["index"], said["text"]) == asked
            answer = self.answers.setdefault((said["life"], said["index"]), task.result().id)
            assert answer == task.result().id
        elif error is None and what.endswith("close"):
            self.closed.add(session_id)
            assert self.receipts.setdefault(session_id, task.result()) == task.result()

    def teardown(self) -> None:
        self.server.failing.clear()
        for gate in self.server.gates.values():
            gate.set()
        self.loop.run_until_complete(self._end())
        self.outcomes_are_right()
        assert self.callers == []
        assert self.server.sessions == {}
        for life in self.server.lives:
            assert not life.running
            assert life.closed >= 1
        self.loop.close()

    async def _end(self) -> None:
        if self.callers:
            await asyncio.wait([caller[3] for caller in self.callers])
        await self.server.stop()


AgentMachine.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
TestAgent = AgentMachine.TestCase
