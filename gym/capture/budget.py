"""Budgets of calls, tokens and money: what is spent, what is in flight, and who has to wait or is refused.

A call is admitted while something is left, and reserves what it is expected to need until it ends. While calls in
flight may use up what is left, further ones wait for them, and none is refused that would still have had its place.
What a call takes is known when it ends, so the last one may go beyond; calls side by side do so only where they need
more than any before them did, and that is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from gym.capture.prices import Cost, shown
from gym.capture.usage import Tokens
from gym.failures import BUDGET_EXHAUSTED, RUN_BUDGET_EXHAUSTED, EpisodeFailure
from gym.servers.base import OPERATIONAL

FIRST_GUESS = 10
"""How many times over reservations count until a call has ended: what is expected of the first ones is a guess."""

log = logging.getLogger(__name__)


class Budgets(BaseModel):
    """Budgets of the policy. None: no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    max_policy_calls: int | None = Field(None, ge=1, description="Calls of the policy in one rollout; null: no limit.")
    max_policy_tokens: int | None = Field(
        None, ge=1, description="Input and output tokens of the policy in one rollout; null: no limit."
    )
    max_policy_cost_usd: float | None = Field(
        None, gt=0, description="Cost of the policy in one rollout, in USD; null: no limit."
    )
    max_run_calls: int | None = Field(
        None,
        ge=1,
        description="Calls of the policy in all rollouts of a start together; null: no limit.",
        json_schema_extra=OPERATIONAL,
    )
    max_run_tokens: int | None = Field(
        None, ge=1, description="The same for its tokens; null: no limit.", json_schema_extra=OPERATIONAL
    )
    max_run_cost_usd: float | None = Field(
        None, gt=0, description="The same for its cost in USD; null: no limit.", json_schema_extra=OPERATIONAL
    )

    def given(self) -> dict[str, int | float]:
        """The budgets that are set, by name."""
        return {name: value for name, value in self if value is not None}


class PolicyCalls(BaseModel):
    """What a rollout asked of its policy, as the model server counted it. Sums leave out what is unknown.

    Attributes:
        calls: Calls, those that failed and those of a harness's retries included.
        failed: Calls without an answer. All that follows is about the others.
        input_tokens: None where no call told its tokens; so are the others.
        calls_without_usage: Calls whose tokens are unknown.
        cost_usd: None where no call's cost is known.
        cost_sources: How many calls got their cost from where.
        calls_without_price: Calls whose cost is unknown.
        exhausted: The budgets that refused a call.
        failures: How many calls ended in which kind of failure, the last kind last; those that a budget refused are
            among them. `cancelled`: the client left before the end. `refused`: a request that was none.
        silent_seconds: The longest that a client waited for the first byte, and left without.
        partial: Only one of the server's processes was asked, and others may have counted more.
    """

    model_config = ConfigDict(extra="ignore")

    calls: int = 0
    failed: int = 0
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    calls_without_usage: int = 0
    cost_usd: float | None = None
    cost_sources: dict[str, int] = Field(default_factory=dict)
    calls_without_price: int = 0
    exhausted: list[str] = Field(default_factory=list)
    failures: dict[str, int] = Field(default_factory=dict)
    silent_seconds: float = 0.0
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """What a call takes from its budgets: what it told, else an estimate."""

    tokens: int = 0
    usd: float = 0.0


@dataclass(frozen=True, slots=True)
class _Limits:
    """Budgets of one rollout, or of all together. `prefix`: what the names of their settings begin with."""

    kind: str
    prefix: str
    of: str
    calls: int | None
    tokens: int | None
    cost_usd: float | None


@dataclass(slots=True)
class _Account:
    """What was spent, and what calls in flight have reserved.

    Attributes:
        tokens: Of all calls, with an estimate for those that did not tell; so is `cost_usd`.
        largest_tokens: The most that one call took; so is `largest_usd`.
        told: Sums of what was told; so is `known_usd`.
    """

    limits: _Limits
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    in_flight: int = 0
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    largest_tokens: int = 0
    largest_usd: float = 0.0
    told: Counter[str] = field(default_factory=Counter)
    known_usd: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)
    calls_without_usage: int = 0
    failed: int = 0
    answered: int = 0
    exhausted: dict[str, None] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    silent_seconds: float = 0.0

    def used_up(self) -> str | None:
        """The first budget of which nothing is left: `calls`, `tokens` or `cost_usd`. Calls count when they begin."""
        calls = self.limits.calls
        return "calls" if calls is not None and self.calls >= calls else self.spent_up()

    def spent_up(self, tokens: float = 0, usd: float = 0) -> str | None:
        """The same for what is known when calls have ended, with so much more."""
        limits = self.limits
        if limits.tokens is not None and self.tokens + tokens >= limits.tokens:
            return "tokens"
        return "cost_usd" if limits.cost_usd is not None and self.cost_usd + usd >= limits.cost_usd else None

    def is_reserved(self) -> bool:
        """Whether calls in flight may use up what is left."""
        tokens = self._needed(self.reserved_tokens, self.largest_tokens)
        return self.spent_up(tokens, self._needed(self.reserved_usd, self.largest_usd)) is not None

    def _needed(self, reserved: float, largest: float) -> float:
        return max(reserved, self.in_flight * largest) if largest else reserved * FIRST_GUESS

    def reserve(self, tokens: int, usd: float) -> None:
        self.calls += 1
        self.in_flight += 1
        self.reserved_tokens += tokens
        self.reserved_usd += usd

    def note_failure(self, kind: str, silent_seconds: float = 0.0) -> None:
        self.failures[kind] = self.failures.pop(kind, 0) + 1
        self.silent_seconds = max(self.silent_seconds, silent_seconds)

    def settle(self, ticket: Ticket, tokens: Tokens, cost: Cost, spent: Spent, answered: bool) -> None:
        self.in_flight -= 1
        self.reserved_tokens -= ticket.tokens
        self.reserved_usd -= ticket.usd
        self.largest_tokens = max(self.largest_tokens, spent.tokens)
        self.largest_usd = max(self.largest_usd, spent.usd)
        self.tokens += spent.tokens
        self.cost_usd += spent.usd
        self.failed += not answered
        self.answered += answered
        self.told.update({name: int(count) for name, count in tokens.known().items() if name != "cost_usd"})
        self.calls_without_usage += answered and tokens.total is None
        if cost.usd is not None:
            self.known_usd += cost.usd
            self.sources[str(cost.source)] += 1


@dataclass(frozen=True, slots=True)
class Ticket:
    """A call in flight: whose, and what it has reserved."""

    accounts: tuple[_Account, ...]
    tokens: int
    usd: float


class Meter:
    """Counts the calls of one model server, and holds them to their budgets.

    Several runs may use one server, and their rollouts have the same names: each run is counted by itself.
    """

    def __init__(self, budgets: Budgets) -> None:
        own = budgets.max_policy_calls, budgets.max_policy_tokens, budgets.max_policy_cost_usd
        whole = budgets.max_run_calls, budgets.max_run_tokens, budgets.max_run_cost_usd
        self._own = _Limits(BUDGET_EXHAUSTED, "max_policy", "this rollout", *own)
        self._whole = _Limits(RUN_BUDGET_EXHAUSTED, "max_run", "the run", *whole)
        self._overrun: set[str] = set()
        self._runs: dict[str | None, _Account] = {}
        self._rollouts: dict[tuple[str | None, str], _Account] = {}
        self._changed = asyncio.Event()

    async def admit(self, rollout: str | None, tokens: int, usd: float, *, run: str | None = None) -> Ticket:
        """Lets a call begin, at once or when calls in flight have ended.

        Args:
            rollout: Whose call it is; None for one that belongs to no rollout.
            tokens: What it is expected to need.
            usd: The same in money.
            run: The run that the rollout belongs to; None for one without a name, which all such calls share.

        Raises:
            EpisodeFailure: `budget_exhausted` or `run_budget_exhausted`: nothing is left.
        """
        accounts: tuple[_Account, ...] = (self._runs.setdefault(run, _Account(self._whole)),)
        if rollout is not None:
            accounts = (*accounts, self._rollouts.setdefault((run, rollout), _Account(self._own)))
        while True:
            _refuse(accounts)
            if not any(one.is_reserved() for one in accounts):
                break
            await self._changed.wait()
        for one in accounts:
            one.reserve(tokens, usd)
        return Ticket(accounts, tokens, usd)

    def settle(self, ticket: Ticket, tokens: Tokens, cost: Cost, spent: Spent, *, answered: bool = True) -> None:
        """A call has ended."""
        for one in ticket.accounts:
            if spent.tokens and (name := one.spent_up()) is not None:
                self._tell_overrun(one, name)
            one.settle(ticket, tokens, cost, spent, answered)
        self._changed.set()
        self._changed = asyncio.Event()

    def failed(self, ticket: Ticket, kind: str, silent_seconds: float = 0.0) -> None:
        """A call has failed.

        Args:
            silent_seconds: How long its client waited before it left, without a byte.
        """
        for one in ticket.accounts:
            one.note_failure(kind, silent_seconds)

    def take(self, rollout: str, *, run: str | None = None) -> PolicyCalls:
        """What a rollout that has ended used; it is forgotten here.

        An agent server of others does not pass on the name of the run: its calls are found without.
        """
        account = self._rollouts.pop((run, rollout), None) or self._rollouts.pop((None, rollout), _Account(self._own))
        told = account.told
        return PolicyCalls(
            calls=account.calls,
            failed=account.failed,
            **{name: told[name] for name in Tokens.__slots__ if name in told},
            calls_without_usage=account.calls_without_usage,
            cost_usd=account.known_usd if account.sources else None,
            cost_sources=dict(account.sources),
            calls_without_price=account.answered - account.sources.total(),
            exhausted=list(account.exhausted),
            failures=account.failures,
            silent_seconds=round(account.silent_seconds, 3),
        )

    def _tell_overrun(self, account: _Account, name: str) -> None:
        setting = f"{account.limits.prefix}_{name}"
        if setting not in self._overrun:
            self._overrun.add(setting)
            log.warning("%s is overrun: calls side by side took more than they were expected to", _limit(account, name))


def _refuse(accounts: Sequence[_Account]) -> None:
    """Refuses a call where one of its accounts is used up; the last one is told."""
    for one in accounts:
        if (name := one.used_up()) is not None:
            one.exhausted[f"{one.limits.prefix}_{name}"] = None
            accounts[-1].note_failure(one.limits.kind)
            # Harnesses take words such as "exceeded" and "too many" for an overlong conversation, and would ask again.
            raise EpisodeFailure(one.limits.kind, f"{_limit(one, name)} is used up")


def _limit(account: _Account, name: str) -> str:
    limits = account.limits
    amount = getattr(limits, name)
    return f"{limits.prefix}_{name} = {shown(amount) if name == 'cost_usd' else amount} of {limits.of}"
