"""What a server has kept is asked for again when the connection breaks, and nothing else is."""

from __future__ import annotations

import pytest

from gym.failures import EpisodeFailure
from gym.servers.asking import ASKED, persistently
from gym.servers.base import ServerError

LOST = EpisodeFailure("server_unreachable", "the connection broke")
LATER = EpisodeFailure("server_unreachable", "and once more")
UNKNOWN = ServerError(409, "the session is closed or unknown")
CRASH = ServerError(500, "a bug")
FAILED = EpisodeFailure("provider_error", "the model is out of order")


@pytest.mark.parametrize(
    ("answers", "outcome", "asked"),
    [
        (["done"], "done", 1),
        ([LOST, "done"], "done", 2),
        ([LOST, LATER, "done"], "done", 3),
        ([LOST] + [LATER] * ASKED, LOST, ASKED),
        ([LOST, UNKNOWN], LOST, 2),  # it has started again: what it was doing is lost with it
        ([LOST, FAILED], FAILED, 2),
        ([LOST, CRASH], CRASH, 2),
        ([FAILED], FAILED, 1),
        ([UNKNOWN], UNKNOWN, 1),
    ],
)
async def test_what_is_asked_again(answers: list[str | Exception], outcome: str | Exception, asked: int) -> None:
    said = iter(answers)
    times = 0

    async def ask() -> str:
        nonlocal times
        times += 1
        answer = next(said)
        if isinstance(answer, Exception):
            raise answer
        return answer

    if isinstance(outcome, str):
        assert await persistently(ask) == outcome
    else:
        with pytest.raises(type(outcome)) as caught:
            await persistently(ask)
        assert caught.value is outcome
    assert times == asked
