"""A session's key is dead in every process of the run as soon as one of them has closed the session."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.error
import urllib.request

import pytest

from gym.launch.hosting import Hosted
from tests.launch.parts import WAIT_SECONDS, apart, model, odd, pid_of, tell, up_again

TRIES = 24
"""New connections, so that each of the processes that share an address gets some."""


async def statuses(running: Hosted, key: str) -> set[int]:
    """What the processes of the model answer to a key. 403: it knows the key, which does not open this path."""

    def ask() -> int:
        headers = {"content-type": "application/json", "x-api-key": key}
        asked = urllib.request.Request(f"{running.url('model')}/pid", b'{"text": ""}', headers)
        try:
            with urllib.request.urlopen(asked, timeout=WAIT_SECONDS) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    return set(await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(TRIES))))


async def refused(running: Hosted, key: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while await statuses(running, key) != {401}:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("issuer", ["apart", "here"])
async def test_a_closed_session_has_no_key_anywhere(issuer: str) -> None:
    here = [odd(kind="responses_api_agents")] if issuer == "here" else []
    others = [] if here else [odd(kind="responses_api_agents")]
    async with apart(model(workers=2), *others, here=here) as running:
        first, second = [await tell(running, "issue", number=number) for number in (1, 2)]
        assert await statuses(running, first) == await statuses(running, second) == {403}
        await tell(running, "revoke", number=1)
        await refused(running, first)
        assert await statuses(running, second) == {403}


async def test_a_process_that_is_started_later_knows_what_was_closed_before() -> None:
    async with apart(model(), odd(kind="responses_api_agents")) as running:
        first, second = [await tell(running, "issue", number=number) for number in (1, 2)]
        await tell(running, "revoke", number=1)
        await refused(running, first)
        os.kill(pid_of(running, "model"), signal.SIGKILL)
        await up_again(running, "model", 1)
        assert await statuses(running, first) == {401}
        assert await statuses(running, second) == {403}


async def test_a_key_dies_with_the_process_that_issued_it() -> None:
    async with apart(model(), odd(kind="responses_api_agents")) as running:
        key = await tell(running, "issue")
        assert await statuses(running, key) == {403}
        os.kill(pid_of(running), signal.SIGKILL)
        await up_again(running, "odd", 1)
        await refused(running, key)
        assert await statuses(running, await tell(running, "issue")) == {403}
