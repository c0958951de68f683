"""What a resources server must do, one check a method; each opens sessions of its own and closes them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from gym.servers.base import describe
from gym.servers.contract import SeedSessionResponse
from gym.testing.subject import Json, Reply, Subject, new_id


@dataclass
class ResourcesChecks:
    """The checks, and how they speak to the server."""

    subject: Subject
    task_data: dict[str, Any]
    outcome: dict[str, Any]
    task_id: str
    episode: dict[str, Any] = field(default_factory=lambda: {"rollout_id": new_id("check"), "attempt": 0})

    async def seed(self, session: str, rollout: str | None = None) -> Reply:
        """Asks for a session, for this episode or another one."""
        episode = self.episode if rollout is None else {"rollout_id": rollout, "attempt": 0}
        task = {"taskset": "conformance", "task_id": self.task_id}
        body = {"resources_session_id": session, "episode_id": episode, "task_id": task, "task_data": self.task_data}
        return await self.subject.post("/seed_session", body)

    async def verify(self, cookies: Json) -> Reply:
        """Asks for a verdict."""
        return await self.subject.post("/verify", self.outcome, cookies=cookies)

    async def close(self, session: str, cookies: Json | None = None) -> None:
        """Closes a session."""
        body = {"resources_session_id": session, "episode_id": self.episode}
        got = (await self.subject.post("/close_session", body, cookies=cookies)).expect(200, "a close")
        assert got.get("resources_session_id", session) == session, f"a close must not name another session: {got}"

    async def opened(self) -> tuple[str, dict[str, str]]:
        """A new session and its cookies."""
        session = new_id("resources-session")
        reply = await self.seed(session)
        try:
            got = SeedSessionResponse.model_validate(reply.expect(200, "a seed"))
        except ValidationError as error:
            raise AssertionError(f"a seed answered with something malformed: {describe(error)}") from error
        assert got.resources_session_id == session, f"a seed must echo its resources_session_id, got {got}"
        assert reply.cookies, "a seed must set a session cookie"
        return session, reply.cookies

    async def seeds(self) -> None:
        """A seed is echoed and sets a cookie; an identical one succeeds, half of one is refused."""
        session, cookies = await self.opened()
        (await self.seed(session)).expect(200, "an identical seed")
        (await self.subject.post("/seed_session", {"resources_session_id": session})).expect(422, "half a seed")
        await self.close(session, cookies)

    async def verifies(self) -> None:
        """A verification needs its session, and gives a verdict; an identical one gets the same."""
        session, cookies = await self.opened()
        (await self.verify({})).expect_refusal("a verification without a session cookie")
        (await self.subject.post("/verify", {"response": 3}, cookies=cookies)).expect(422, "half a verification")
        first, second = await asyncio.gather(self.verify(cookies), self.verify(cookies))
        verdict = first.expect(200, "a verification")
        check_verdict(verdict)
        for reply, which in ((second, "at the same time"), (await self.verify(cookies), "after it")):
            again = reply.expect(200, f"an identical verification {which}")
            assert again == verdict, f"identical verifications must get one verdict, got {verdict} and {again}"
        await self.close(session, cookies)

    async def closes_once(self) -> None:
        """A close may be repeated, and may name a session that never was."""
        session, cookies = await self.opened()
        await asyncio.gather(*(self.close(session, cookies) for _ in range(3)))
        await self.close(session, cookies)
        await self.close(new_id("resources-session"))

    async def refuses_conflicts(self) -> None:
        """A session belongs to one episode."""
        session, cookies = await self.opened()
        (await self.seed(session, rollout=new_id("other"))).expect(409, "a seed of the same id for another episode")
        await self.close(session, cookies)

    async def fences(self) -> None:
        """Nothing happens in a session after its close, and no seed comes after it."""
        session, cookies = await self.opened()
        await self.close(session, cookies)
        (await self.verify(cookies)).expect(409, "a verification after close")
        (await self.seed(session)).expect(409, "a seed after close")
        late = new_id("resources-session")
        await self.close(late)
        (await self.seed(late)).expect(409, "a seed that comes after its close")


def check_verdict(verdict: Json) -> None:
    """Exactly one of a finite reward and a failure of the verifier."""
    reward, failed = verdict.get("reward"), verdict.get("failure_kind")
    scored = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
    assert scored or failed, f"a verdict has a finite reward or a failure_kind, got {dict(verdict)}"
