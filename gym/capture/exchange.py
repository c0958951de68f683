"""One call of a model server on its way: admitted, answered, counted, recorded. Each exactly once."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gym.apis.ending import Ending
from gym.apis.errors import ProviderFailure, api_error
from gym.apis.estimate import CHARACTERS_PER_TOKEN
from gym.capture.budget import Budgets, Meter, PolicyCalls, Spent, Ticket
from gym.capture.failure import told
from gym.capture.prices import FREE, Cost, Price, cost_of, price_of
from gym.capture.store import Kind, Store
from gym.capture.usage import Tokens, characters_in, tokens_of
from gym.failures import EpisodeFailure
from gym.servers.base import Call
from gym.servers.contract import ACTIVATION_HEADER, INVOCATION_HEADER, SESSION_HEADER

if TYPE_CHECKING:
    from gym.apis.clients.api import ClientApi

CLIENT_LEFT = 499
COUNT = "/count_tokens"
"""Where the tokens of a request are counted, behind the path of its API."""

REFUSED = "refused"
"""How a request that the server did not take is counted: it has no kind of failure."""

EXPECTED_OUTPUT_TOKENS = 1000
"""What a call that sets no limit is expected to answer."""

_current: ContextVar[Exchange | None] = ContextVar("gym_exchange", default=None)
log = logging.getLogger(__name__)


def limit_in(body: Mapping[str, Any]) -> int | None:
    """The limit of output tokens in a request of any API; None where it has none."""
    limits = (body.get(name) for name in ("max_output_tokens", "max_completion_tokens", "max_tokens"))
    return next((value for value in limits if isinstance(value, int) and value > 0), None)


def note_tokens(tokens: Tokens) -> None:
    """Says what the provider told of the tokens, where the client's API cannot say it, or not as it was told."""
    if (exchange := _current.get()) is not None:
        exchange.tokens = tokens


def note_token_ids(fields: Mapping[str, Any]) -> None:
    """Says token ids and log probabilities that the client's API has no place for."""
    if fields and (exchange := _current.get()) is not None:
        exchange.token_ids = fields


def note_error(error: Exception) -> None:
    """Says what an answer that is passed on as it is tells itself that went wrong."""
    if (exchange := _current.get()) is not None:
        exchange.noted = error


def note_attempts(number: int) -> None:
    """Says how often the provider was asked."""
    if (exchange := _current.get()) is not None:
        exchange.attempts = number


@dataclass(frozen=True)
class Asked:
    """What a client asks.

    Attributes:
        size: Length of its body in characters, where that is known.
        kind: A call of the model, or a count of the tokens that one would have.
    """

    api: ClientApi
    body: Mapping[str, Any]
    call: Call
    stream: bool = False
    size: int = 0
    kind: Kind = "call"

    @property
    def path(self) -> str:
        """Path of the API."""
        return self.api.path + (COUNT if self.kind == "count" else "")


class CallBook:
    """Counts and records the calls of one model server.

    Args:
        store: Where they are recorded; None: they are only counted.
        costs_nothing: The model is a script, or plays something back.
    """

    def __init__(
        self, name: str, budgets: Budgets, prices: Mapping[str, Price], store: Store | None, *, costs_nothing: bool
    ) -> None:
        self.name = name
        self._meter = Meter(budgets)
        self._has_budgets = bool(budgets.given())
        self._prices = prices
        self._store = store
        self._costs_nothing = costs_nothing
        self._warned: set[str] = set()

    async def open(self, asked: Asked, model: str, limit: int | None = None) -> Exchange:
        """Lets a call begin, when its budgets have room for it.

        Args:
            limit: The most output tokens that it may have; None: nobody says.

        Raises:
            EpisodeFailure: `budget_exhausted` or `run_budget_exhausted`.
        """
        exchange = Exchange(self, asked, model, FREE if self._costs_nothing else price_of(self._prices, model))
        try:
            expected = exchange.expected(limit) if self._has_budgets else Tokens()
            usd = exchange.price.of(expected) if exchange.price else None
            exchange.ticket = await self._meter.admit(
                asked.call.rollout, expected.total or 0, usd or 0.0, run=asked.call.run
            )
        except EpisodeFailure as refusal:
            exchange.failed(refusal)
            raise
        except asyncio.CancelledError:
            exchange.left()
            raise
        return exchange

    def count(self, asked: Asked, model: str) -> Exchange:
        """Begins a count of tokens: it is recorded, and draws on no budget."""
        return Exchange(self, asked, model, None)

    def take(self, rollout: str, run: str | None) -> PolicyCalls:
        """What a rollout that has ended used; it is forgotten here."""
        return self._meter.take(rollout, run=run)

    def close(self, exchange: Exchange, answer: bytes, status: int, error: Mapping[str, Any] | None) -> None:
        """Counts and records a call that has ended."""
        tokens, cost = exchange.tokens or Tokens(), self._cost(exchange) if answer else Cost()
        if answer and error is None and cost.usd is None and exchange.ticket is not None:
            self._warn(exchange)
        if exchange.ticket is not None:
            spent = exchange.spent(answer, cost) if answer and self._has_budgets else Spent()
            self._meter.settle(exchange.ticket, tokens, cost, spent, answered=bool(answer))
            if error is not None:
                self._meter.failed(exchange.ticket, error["kind"] or REFUSED, exchange.silent_seconds(status))
        if self._store is not None:
            counted = {"tokens": tokens.known() or None, "cost_usd": cost.usd, "cost_source": cost.source}
            said = {name: value for name, value in {**exchange.head(), **counted}.items() if value is not None}
            self._store.add(said | _end(answer, status, error), exchange.asked.body, exchange.asked.kind)

    def _cost(self, exchange: Exchange) -> Cost:
        if exchange.ticket is None:
            return Cost()
        return Cost(0.0, "free") if self._costs_nothing else cost_of(exchange.tokens or Tokens(), exchange.price)

    def _warn(self, exchange: Exchange) -> None:
        if exchange.model in self._warned:
            return
        self._warned.add(exchange.model)
        if exchange.price is None:
            log.warning("%s: no price for the model %s: its cost is unknown; see `prices`", self.name, exchange.model)
        else:
            log.warning(
                "%s: a call of the model %s told no token counts: its cost is unknown", self.name, exchange.model
            )


@dataclass
class Exchange:
    """A call that has begun.

    Attributes:
        ticket: What it has reserved; None where it was refused, or needs none.
        tokens: What it used, as far as that is known.
        attempts: How often the provider was asked.
        token_ids: Those of its answer, where the answer itself has no place for them.
        noted: What an answer that was passed on as it is tells that went wrong.
    """

    book: CallBook
    asked: Asked
    model: str
    price: Price | None
    ticket: Ticket | None = None
    tokens: Tokens | None = None
    attempts: int | None = None
    token_ids: Mapping[str, Any] | None = None
    noted: Exception | None = None
    _started_at: float = field(default_factory=time.time)
    _begun: float = field(default_factory=time.perf_counter)
    _first_byte: float | None = None
    _is_over: bool = False

    def expected(self, limit: int | None) -> Tokens:
        """What it will need, as far as that can be told before."""
        answers = self.asked.body.get("n")
        wrote = (limit or EXPECTED_OUTPUT_TOKENS) * (answers if isinstance(answers, int) and answers > 0 else 1)
        return Tokens(input_tokens=self._characters() // CHARACTERS_PER_TOKEN, output_tokens=wrote)

    def spent(self, answer: bytes, cost: Cost) -> Spent:
        """What it takes from its budgets. What it does not tell is estimated, which no record shows."""
        told = self.tokens or Tokens()
        read, wrote = told.input_tokens, told.output_tokens
        tokens = replace(
            told,
            input_tokens=self._characters() // CHARACTERS_PER_TOKEN if read is None else read,
            output_tokens=self._written(answer) // CHARACTERS_PER_TOKEN if wrote is None else wrote,
        )
        usd = cost.usd if cost.usd is not None or self.price is None else self.price.of(tokens)
        return Spent(tokens.total or 0, usd or 0.0)

    def silent_seconds(self, status: int) -> float:
        """How long its client waited before it left, without a byte; 0 for any other end."""
        is_silent = status == CLIENT_LEFT and self._first_byte is None
        return time.perf_counter() - self._begun if is_silent else 0.0

    def _written(self, answer: bytes) -> int:
        return characters_in(answer, stream=self.asked.stream)

    def _characters(self) -> int:
        return self.asked.size or len(str(self.asked.body))

    def head(self) -> dict[str, Any]:
        """What the record says of it beside request and answer."""
        call, asked = self.asked.call, self.asked
        who = call.identity
        return {
            "instance": self.book.name,
            "run": call.run,
            "rollout": call.rollout,
            "session": who.session if who else call.headers.get(SESSION_HEADER),
            "activation": who.activation if who else _number(call.headers.get(ACTIVATION_HEADER)),
            "invocation": call.headers.get(INVOCATION_HEADER),
            "api": asked.api.name,
            "path": asked.path,
            "stream": asked.stream,
            "model": self.model,
            "started_at": round(self._started_at, 6),
            "first_byte_seconds": None if self._first_byte is None else round(self._first_byte, 6),
            "seconds": round(time.perf_counter() - self._begun, 6),
            "attempts": self.attempts,
            "token_ids": self.token_ids,
        }

    @contextmanager
    def answering(self) -> Iterator[None]:
        """What happens inside may note things about this call; what goes wrong inside ends it."""
        before = _current.set(self)
        try:
            yield
        except Exception as error:
            self.failed(error)
            raise
        except BaseException:
            self.left()
            raise
        finally:
            _current.reset(before)

    async def through(
        self, pieces: AsyncGenerator[bytes, None], failure: Callable[[Exception, bytes], bytes]
    ) -> AsyncGenerator[bytes, None]:
        """The pieces of a streamed answer as they come; the call ends with them.

        Args:
            failure: How the API tells that a stream broke off, after what was sent of it. What goes wrong before the
                first piece is raised.
        """
        answer: list[bytes] = []
        _current.set(self)  # in the task that reads ahead, which is this stream's own
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if self._first_byte is None:
                        self._first_byte = time.perf_counter() - self._begun
                    answer.append(piece)
                    yield piece
        except Exception as error:
            if not answer:
                self.failed(error)
                raise
            sent = b"".join(answer)
            is_between = sent.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
            last = (b"" if is_between else b"\n\n") + failure(error, sent)
            self.failed(error, sent + last)
            yield last
            return
        except BaseException:  # the client has gone, perhaps because it had all that it wanted
            self.left(b"".join(answer))
            raise
        self.answered(b"".join(answer))

    def answered(self, answer: bytes) -> None:
        """It has ended well."""
        if self.noted is None:
            self._over(answer, 200, None)
        else:
            self.failed(self.noted, answer)

    def failed(self, error: Exception, answer: bytes = b"") -> None:
        """It has failed, after so much of its answer."""
        self._over(answer, api_error(error).status, told(error))

    def left(self, answer: bytes = b"") -> None:
        """Its client has gone, after so much of the answer."""
        ending = Ending(self.asked.api.ends)
        with suppress(ProviderFailure):
            ending.feed(answer)
        if ending.failure is not None:
            self.failed(ending.failure, answer)
        elif ending.complete:
            self.answered(answer)
        else:
            self._over(answer, CLIENT_LEFT, {"kind": "cancelled", "message": "the client left before the end"})

    def _over(self, answer: bytes, status: int, error: Mapping[str, Any] | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self.tokens is None:
            found = tokens_of(self.asked.api.name, answer, stream=self.asked.stream)
            # Messages begin with a count of their output, which says nothing of one that broke off.
            self.tokens = found if error is None else Tokens(found.input_tokens, found.cached_input_tokens)
        self.book.close(self, answer, status, error)


def _end(answer: bytes, status: int, error: Mapping[str, Any] | None) -> dict[str, Any]:
    try:
        said: dict[str, Any] = {"status": status, "answer": answer.decode()}
    except UnicodeDecodeError:
        said = {"status": status, "answer_base64": base64.b64encode(answer).decode()}
    return said if error is None else {**said, "error": error}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
