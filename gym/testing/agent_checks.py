"""What an agent server must do, one check a method; each opens sessions of its own and closes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gym.servers.contract import ACTIVATION_HEADER
from gym.servers.rollout_path import with_rollout
from gym.testing.subject import Json, Reply, Subject, new_id


@dataclass
class AgentChecks:
    """The checks, and how they speak to the server."""

    subject: Subject
    request: dict[str, Any]
    fields: dict[str, Any]
    episode: dict[str, Any] = field(default_factory=lambda: {"rollout_id": new_id("check"), "attempt": 0})

    def body(self, session: str, **more: Any) -> dict[str, Any]:
        """A seed."""
        task = {"taskset": "conformance", "task_id": "1"}
        return {"agent_session_id": session, "episode_id": self.episode, "task_id": task, **self.fields, **more}

    async def seed(self, session: str, cookies: Json | None = None, **more: Any) -> Reply:
        """Asks for a session."""
        return await self.subject.post("/v1/agent_sessions", self.body(session, **more), cookies=cookies)

    async def activate(self, cookies: Json, index: int | None = None, **more: Any) -> Reply:
        """Sends the request, as this activation."""
        headers = {} if index is None else {ACTIVATION_HEADER: str(index)}
        return await self.subject.post("/v1/responses", {**self.request, **more}, cookies=cookies, headers=headers)

    async def close(self, session: str, rollout: str | None = None) -> Reply:
        """Asks for a close, as this episode or as another one."""
        episode = self.episode if rollout is None else {"rollout_id": rollout, "attempt": 0}
        return await self.subject.post("/v1/agent_sessions/close", {"agent_session_id": session, "episode_id": episode})

    async def opened(self, **more: Any) -> tuple[str, dict[str, str]]:
        """A new session and its cookies."""
        session = new_id("agent-session")
        reply = await self.seed(session, **more)
        got = reply.expect(200, "a seed")
        assert got.get("agent_session_id") == session, f"a seed must echo its agent_session_id, got {got}"
        assert reply.cookies, "a seed must set a session cookie"
        return session, reply.cookies

    async def closed(self, session: str) -> dict[str, Any]:
        """Closes a session that is open; its receipt."""
        got = (await self.close(session)).expect(200, "closing an open session")
        assert got.get("agent_session_id") == session, f"a close must echo its agent_session_id, got {got}"
        known = {"agent_session_id", "agent_observations", "resources_cookies", "cleanup_confirmed"}
        assert set(got) <= known, f"a close answers only with {sorted(known)}, got {sorted(got)}"
        return dict(got)

    async def seeds_once(self) -> None:
        """An identical seed gets the same session, whoever else asks; a conflicting one is refused."""
        session = new_id("agent-session")
        replies = await asyncio.gather(*(self.seed(session) for _ in range(3)))
        for reply in replies:
            reply.expect(200, "identical seeds at the same time")
        neighbour, other = await self.opened()
        (await self.seed(session, cookies=replies[0].cookies)).expect(200, "an identical seed with its cookie")
        changed = {"task_id": {"taskset": "conformance", "task_id": "2"}}
        (await self.seed(session, **changed)).expect(409, "a seed of the same id with another body")
        (await self.seed(new_id("agent-session"), cookies=other)).expect(409, "a seed with another session's cookie")
        await self.closed(session)
        await self.closed(neighbour)

    async def activates_once(self) -> None:
        """An identical activation gets the same answer; another body is refused."""
        session, cookies = await self.opened()
        first, second = await asyncio.gather(self.activate(cookies), self.activate(cookies))
        got = first.expect(200, "an activation")
        assert isinstance(got.get("output"), list), f"an activation answers with a Responses body, got {got}"
        assert got == second.expect(200, "an identical activation at the same time"), (
            "identical activations must get one answer"
        )
        assert got == (await self.activate(cookies)).expect(200, "an identical activation later"), (
            "identical activations must get one answer"
        )
        (await self.activate(cookies, metadata={"other": "1"})).expect(409, "a second activation with another body")
        (await self.activate({})).expect_refusal("an activation without a session cookie")
        path = with_rollout("/v1/responses", new_id("other"))
        (await self.subject.post(path, self.request, cookies=cookies)).expect(409, "an activation of another rollout")
        await self.closed(session)

    async def outlives_its_waiter(self) -> None:
        """A caller that goes away does not end an activation."""
        session, cookies = await self.opened()
        waiter = asyncio.create_task(self.activate(cookies))
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.wait([waiter])
        got = (await self.activate(cookies)).expect(200, "a retry of an activation whose caller went away")
        assert got == (await self.activate(cookies)).expect(200, "a further retry"), "retries must get one answer"
        await self.closed(session)

    async def closes_once(self) -> None:
        """Every close gets one receipt; nothing happens in the session afterwards."""
        session, cookies = await self.opened()
        (await self.close(session, rollout=new_id("other"))).expect(409, "a close by another episode")
        first, second = await asyncio.gather(self.closed(session), self.closed(session))
        assert first == second == await self.closed(session), "every close must get the same receipt"
        (await self.activate(cookies)).expect(409, "an activation after close")
        (await self.seed(session)).expect(409, "a seed after close")
        (await self.close(session, rollout=new_id("other"))).expect(409, "a close by another episode, afterwards")

    async def fences(self) -> None:
        """A close that comes before its seed keeps that seed out."""
        session = new_id("agent-session")
        (await self.close(session)).expect(200, "closing an id that was never seeded")
        (await self.seed(session)).expect(409, "a seed that comes after its close")

    async def ends_what_runs(self) -> None:
        """A close ends the activation that runs."""
        session, cookies = await self.opened()
        running = asyncio.create_task(self.activate(cookies))
        await asyncio.sleep(0.05)
        await self.closed(session)
        await running
        (await self.activate(cookies)).expect(409, "an activation after a close that came while it ran")

    async def refuses_malformed(self) -> None:
        """Unknown fields, tool names given twice and odd ids are refused."""
        session = new_id("agent-session")
        (await self.seed(session, surprise=1)).expect(422, "a seed with an unknown field")
        grant = {"kind": "direct_http", "name": "twice", "required": False, "base_url": "http://127.0.0.1:9"}
        (await self.seed(session, tool_accesses=[grant, grant])).expect(422, "a seed with a tool name twice")
        (await self.seed(session, episode_id={"rollout_id": "../x"})).expect(422, "a rollout id with slashes")

    async def refuses_continuation(self) -> None:
        """A continuation that the agent cannot do is refused, and leaves nothing behind."""
        session = new_id("agent-session")
        continuation = {"mode": "resume_harness_session"}
        (await self.seed(session, continuation=continuation)).expect(422, "a continuation that the agent cannot do")
        (await self.seed(session)).expect(200, "the same id without continuation")
        await self.closed(session)

    async def refuses_grant(self, grant: Json) -> None:
        """A required grant that the agent cannot use is refused with a reason, and leaves nothing behind."""
        session = new_id("agent-session")
        grant = {**grant, "required": True}
        reply = await self.seed(session, tool_accesses=[grant])
        reply.expect(422, "a required grant that the agent cannot use")
        assert reply.body, "the refusal of a grant must say why"
        (await self.seed(session)).expect(200, "the same id without that grant")
        await self.closed(session)

    async def continues(self) -> None:
        """Activations are counted, replayed, and neither skipped nor changed."""
        session, cookies = await self.opened(continuation={"mode": "resume_harness_session"})
        (await self.activate(cookies)).expect_refusal("an activation without an index, in a session that continues")
        first = (await self.activate(cookies, 1)).expect(200, "activation 1")
        (await self.activate(cookies, 3)).expect(409, "activation 3 after 1")
        second = (await self.activate(cookies, 2)).expect(200, "activation 2")
        assert first == (await self.activate(cookies, 1)).expect(200, "activation 1 again"), "replays must be equal"
        assert second == (await self.activate(cookies, 2)).expect(200, "activation 2 again"), "replays must be equal"
        (await self.activate(cookies, 1, metadata={"other": "1"})).expect(409, "activation 1 with another body")
        await self.closed(session)
