"""Base of the model servers: one policy behind three APIs.

Servers of this process ask `/v1/responses` with a typed request. Over HTTP the same policy speaks Responses, Chat
Completions and Anthropic Messages, each whole or streamed. A subclass fills in `respond`; all else is conversion.
"""

from __future__ import annotations

import json
import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from gym.apis.clients.api import ClientApi, Encoder
from gym.apis.clients.chat import ChatClient
from gym.apis.clients.messages import MessagesClient
from gym.apis.clients.responses import ResponsesClient
from gym.apis.errors import api_error
from gym.apis.estimate import tokens_in
from gym.apis.events import Ended, Event, ItemDone, unfold
from gym.apis.responses import Item, ResponsesRequest, ResponsesResponse
from gym.apis.sse import MEDIA_TYPE
from gym.apis.streaming import EventStream
from gym.apis.upstreams.token_ids import token_ids_of
from gym.capture.budget import Budgets, PolicyCalls
from gym.capture.exchange import COUNT, Asked, CallBook, Exchange, limit_in, note_token_ids, note_tokens
from gym.capture.prices import Price
from gym.capture.store import Store
from gym.capture.usage import Tokens
from gym.failures import EpisodeFailure
from gym.servers.base import OPERATIONAL, Call, Reply, Route, Server, ServerConfig, ServerContext, ServerError, route
from gym.servers.capabilities import Capabilities
from gym.servers.understood import understood
from gym.servers.wire import dumped

DELTAS = 4
"""Pieces into which a text is cut that came whole."""

RESPONSES, CHAT, MESSAGES = ResponsesClient(), ChatClient(), MessagesClient()
COUNT_TOKENS = MESSAGES.path + COUNT
MODELS = "/v1/models"
STREAM_HEADERS = {"content-type": MEDIA_TYPE, "cache-control": "no-cache"}
JSON_HEADERS = {"content-type": "application/json"}

log = logging.getLogger(__name__)


class ModelServerConfig(ServerConfig):
    """Settings that every model server has."""

    prices: dict[str, Price] = Field(
        default_factory=dict,
        description="Prices by model name or pattern, before those of the run's `prices`.",
        json_schema_extra=OPERATIONAL,
    )
    budgets: Budgets = Field(
        default_factory=Budgets,
        description="Set by the run's settings of the same names; of a policy only.",
        json_schema_extra=OPERATIONAL,
    )

    capabilities: Capabilities = Field(
        default_factory=Capabilities,
        description="What the model can do, as far as it is known: agents and tasks that ask for more are refused.",
        json_schema_extra=OPERATIONAL,
    )

    @property
    def served_model(self) -> str | None:
        """The model's name where the settings say it: what it costs is looked up before the start."""
        return None


ModelConfigT = TypeVar("ModelConfigT", bound=ModelServerConfig)


class RolloutName(BaseModel):
    """Names a rollout, by `EpisodeId.key`, and the run that it belongs to."""

    model_config = ConfigDict(extra="forbid")

    rollout: str
    run: str | None = None


class ApiBody(BaseModel):
    """A body of an API of others: any fields."""

    model_config = ConfigDict(extra="allow")


Body = dict[str, Any]
Answer = Callable[[bytes, Call], Awaitable[Reply]]


class ModelServer(Server[ModelConfigT]):
    """A policy that answers requests of three APIs.

    Attributes:
        scripted: True for a policy that plays a script and runs nothing of a model's choosing.
        costs_nothing: True for a policy that pays nobody, whatever the prices say.
    """

    config_type: ClassVar[type[ServerConfig]] = ModelServerConfig
    scripted: ClassVar[bool] = False
    costs_nothing: ClassVar[bool] = False

    def __init__(self, config: ModelConfigT, context: ServerContext) -> None:
        super().__init__(config, context)
        store = None if context.records is None else Store(context.records, context.name, context.mask)
        self._calls = CallBook(
            context.name, config.budgets, config.prices, store, costs_nothing=self.costs_nothing or self.scripted
        )

    @property
    def model(self) -> str:
        """The model's name as it is listed. A request's own `model` is not used."""
        return self.name

    def output_limit(self, body: Mapping[str, Any]) -> int | None:
        """The most output tokens that the answer to a request may have; None where nobody says."""
        return limit_in(body)

    @abstractmethod
    async def respond(self, request: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The policy's answer to one request.

        Raises:
            ServerError: 400 for what the policy has no place for.
            EpisodeFailure: `provider_*`: the provider failed or refused, with its own status and text.
        """

    async def events(self, request: ResponsesRequest, call: Call) -> AsyncIterator[list[Event]]:
        """The policy's answer as it comes. Raises as `respond`."""
        yield list(unfold(await self.respond(request, call), DELTAS))

    async def answered(self, api: ClientApi, body: Body, call: Call) -> bytes:
        """The whole answer to a client's request, in its API. Raises as `respond`.

        A server of the run gets its response as it would in this process, with counts that may be unknown.
        """
        request, _ = self._understood(api, body)
        response = await self.respond(request, call)
        note_tokens(Tokens.of(response.usage))
        if api is RESPONSES and call.identity is None:
            return dumped(response)
        _note_token_ids(api, response.output)
        return json.dumps(api.answer(response, body)).encode()

    async def streamed(self, api: ClientApi, body: Body, call: Call) -> AsyncGenerator[bytes, None]:
        """The answer to a client's request as a stream of its API. Raises as `respond`."""
        note_tokens(Tokens())  # those that the API makes the stream begin with are none of the provider's
        request, encoder = self._understood(api, body)
        async for events in self.events(request, call):
            if events and isinstance(last := events[-1], Ended):
                note_tokens(Tokens.of(last.usage))
            _note_token_ids(api, (event.item for event in events if isinstance(event, ItemDone)))
            if piece := b"".join(map(encoder.event, events)):
                yield piece

    async def counted(self, body: Body, call: Call) -> Body:  # noqa: ARG002
        """The tokens of a Messages request: an estimate, unless the provider counts."""
        return {"input_tokens": understood(lambda given: tokens_in(MESSAGES.request(given)), body), "estimated": True}

    def _understood(self, api: ClientApi, body: Body) -> tuple[ResponsesRequest, Encoder]:
        """The request in neutral form, and what writes the answer to it."""
        return understood(lambda given: (api.request(given), api.encoder(given)), body)

    @route("/policy_calls")
    async def policy_calls(self, body: RolloutName, call: Call) -> PolicyCalls:  # noqa: ARG002
        """What a rollout that has ended used. It is forgotten here: ask once."""
        used = self._calls.take(body.rollout, body.run)
        return used.model_copy(update={"partial": True}) if (self.config.num_workers or 1) > 1 else used

    def opens_to_keys(self, path: str) -> bool:
        """A session key opens the model APIs."""
        return path.startswith("/v1/")

    def build_routes(self) -> list[Route]:
        """The APIs, and what their clients ask beside them."""
        chat, messages = partial(self._in_process, CHAT), partial(self._in_process, MESSAGES)
        return [
            *super().build_routes(),
            Route(RESPONSES.path, self._responses, ResponsesRequest, ResponsesResponse, "POST", self._http(RESPONSES)),
            Route(CHAT.path, chat, ApiBody, Any, "POST", self._http(CHAT)),
            Route(MESSAGES.path, messages, ApiBody, Any, "POST", self._http(MESSAGES)),
            Route(COUNT_TOKENS, self._count, ApiBody, Any, "POST", self._http(MESSAGES, self._counted)),
            Route(MODELS, self._models, ApiBody, Any, "GET", self._http(CHAT, self._listed)),
            Route(f"{MODELS}/{{name:path}}", self._model, ApiBody, Any, "GET", self._http(CHAT, self._shown)),
        ]

    def _http(self, api: ClientApi, answer: Answer | None = None) -> Callable[[bytes, Call], Awaitable[Reply]]:
        return partial(_in_shape, self.name, api, answer or partial(self._reply, api))

    async def _responses(self, body: ResponsesRequest, call: Call) -> ResponsesResponse:
        """The typed answer for a server of this process."""
        if body.stream:
            raise ServerError(400, "streams go over HTTP")
        asked = {name: getattr(body, name) for name in body.model_fields_set}
        exchange = await self._open(Asked(RESPONSES, asked, call))
        with exchange.answering():
            response = await self.respond(body, call)
            note_tokens(Tokens.of(response.usage))
            answer = dumped(response)
        exchange.answered(answer)
        return response

    async def _in_process(self, api: ClientApi, body: ApiBody, call: Call) -> Body:
        if (asked := body.model_dump()).get("stream"):
            raise ServerError(400, "streams go over HTTP")
        answer: Body = json.loads(await self._whole(Asked(api, asked, call), call))
        return answer

    async def _open(self, asked: Asked) -> Exchange:
        return await self._calls.open(asked, self.model, self.output_limit(asked.body))

    async def _whole(self, asked: Asked, call: Call) -> bytes:
        exchange = await self._open(asked)
        with exchange.answering():
            answer = await self.answered(asked.api, dict(asked.body), call)
        exchange.answered(answer)
        return answer

    async def _reply(self, api: ClientApi, raw: bytes, call: Call) -> Reply:
        body = _decoded(raw)
        asked = Asked(api, body, call, stream=bool(body.get("stream")), size=len(raw))
        if not asked.stream:
            return Reply(await self._whole(asked, call), headers=JSON_HEADERS)
        exchange = await self._open(asked)

        def failure(error: Exception, sent: bytes = b"") -> bytes:
            return api.broken_off(api_error(error), sent, body)

        stream = EventStream(exchange.through(self.streamed(api, body, call), failure), failure)
        return Reply(await stream.begin(), headers=STREAM_HEADERS)

    async def _count(self, body: ApiBody, call: Call) -> Body:
        answer: Body = json.loads(await self._counting(body.model_dump(), call))
        return answer

    async def _counted(self, raw: bytes, call: Call) -> Reply:
        return Reply(await self._counting(_decoded(raw), call), headers=JSON_HEADERS)

    async def _counting(self, body: Body, call: Call) -> bytes:
        exchange = self._calls.count(Asked(MESSAGES, body, call, kind="count"), self.model)
        with exchange.answering():
            answer = json.dumps(await self.counted(body, call)).encode()
        exchange.answered(answer)
        return answer

    async def _model(self, body: ApiBody, call: Call) -> Body:  # noqa: ARG002
        """The one model, in a form that clients of OpenAI and of Anthropic can read, whatever they call it."""
        openai = {"id": self.model, "object": "model", "created": 0, "owned_by": "gym"}
        anthropic = {"type": "model", "display_name": self.model, "created_at": "1970-01-01T00:00:00Z"}
        return {**openai, **anthropic}

    async def _models(self, body: ApiBody, call: Call) -> Body:
        page = {"has_more": False, "first_id": self.model, "last_id": self.model}
        return {"object": "list", "data": [await self._model(body, call)], **page}

    async def _shown(self, raw: bytes, call: Call) -> Reply:  # noqa: ARG002
        return Reply(json.dumps(await self._model(ApiBody(), call)).encode(), headers=JSON_HEADERS)

    async def _listed(self, raw: bytes, call: Call) -> Reply:  # noqa: ARG002
        return Reply(json.dumps(await self._models(ApiBody(), call)).encode(), headers=JSON_HEADERS)


async def _in_shape(name: str, api: ClientApi, answer: Answer, raw: bytes, call: Call) -> Reply:
    """The answer; or what went wrong, which clients of an API can only read in its shape."""
    try:
        return await answer(raw, call)
    except Exception as error:
        if not isinstance(error, ServerError | EpisodeFailure):
            log.exception("%s%s failed", name, api.path)
        told = api_error(error)
        content = json.dumps(api.error(told)).encode()
        return Reply(content, told.status, {**JSON_HEADERS, **told.headers})


def _note_token_ids(api: ClientApi, items: Iterable[Item]) -> None:
    """Notes what only the items of a Responses answer have a place for."""
    for item in () if api is RESPONSES else items:
        note_token_ids(token_ids_of(item))


def _decoded(raw: bytes) -> Body:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ServerError(400, f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ServerError(400, "the body is no JSON object")
    return body
