"""Routes from typed methods, and bodies that are validated once."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from gym.failures import EpisodeFailure
from gym.servers.base import Call, Server, ServerConfig, ServerError, one_line, route
from tests.servers.parts import Echo, Said, context


class Louder(Echo):
    """Overrides a handler; the path stays."""

    async def echo(self, body: Said, call: Call) -> Said:
        """Answers with the body, louder."""
        return Said(text=body.text.upper())

    @route("/more")
    async def more(self, body: Said, call: Call) -> Said:
        """One more route."""
        return body


class Wrong(Server[ServerConfig]):
    """A handler without a typed body."""

    @route("/wrong")
    async def wrong(self, body: dict[str, Any], call: Call) -> Said:
        """Takes anything."""
        return Said(text="")


async def test_routes_are_inherited_and_overridden() -> None:
    server = Louder(ServerConfig(), context())
    assert set(server.routes) == {"/echo", "/plain", "/malformed", "/more"}
    assert await server.routes["/echo"]({"text": "hi"}, Call()) == Said(text="HI")


def test_a_handler_needs_a_typed_body() -> None:
    with pytest.raises(TypeError, match=r"Wrong\.wrong needs a pydantic model as the type of its body"):
        Wrong(ServerConfig(), context())


async def test_a_typed_body_is_passed_as_it_is_and_any_other_is_validated() -> None:
    class Similar(BaseModel):
        text: str
        unset: str | None = None

    body = Said(text="hi")
    endpoint = Echo(ServerConfig(), context()).routes["/echo"]
    assert await endpoint(body, Call()) is body
    assert await endpoint(Similar(text="hi"), Call()) == body
    with pytest.raises(ServerError, match="times: Input should be a valid integer") as caught:
        await endpoint({"text": "hi", "times": "secret"}, Call())
    assert "secret" not in caught.value.detail


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        ServerConfig.model_validate({"num_wrokers": 1})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ServerError(409, "closed"), "closed"),
        (EpisodeFailure("sandbox_lost", "gone\nfar"), "gone far"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_one_line(error: Exception, text: str) -> None:
    assert one_line(error) == text
