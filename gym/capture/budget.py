"""Budgets of calls, tokens and money: what is spent, what is in flight, and who has to wait or is refused.

A call is admitted while something is left, and reserves what it is expected to need until it ends. While calls in
flight may use up what is left, further ones wait for them; so calls side by side cannot overrun a budget, and none is
refused that would still have had its place. What a call takes is known when it ends, so the last one may go beyond.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field

from gym.capture.prices import Cost, shown
from gym.capture.usage import Tokens
from gym.failures import BUDGET_EXHAUSTED, RUN_BUDGET_EXHAUSTED, EpisodeFailure
from gym.servers.base import OPERATIONAL


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
    """

    model_config = ConfigDict(extra="ignore")

    calls: int = 0
    failed: int = 0
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    calls_without_usage: int = 0
    cost_usd: float | None = None
    cost_sources: dict[str, int] = Field(default_factory=dict)
    calls_without_price: int = 0
    exhausted: list[str] = Field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a call takes from its budgets: what it told, else an estimate."""

    tokens: int = 0
    usd: float = 0.0


@dataclass(slots=True)
class _Account:
    """What was spent, and what calls in flight have reserved.

    Attributes:
        tokens: Of all calls, with an estimate for those that did not tell; so is `cost_usd`.
        told: Sums of what was told; so is `known_usd`.
    """

    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    told: Counter[str] = field(default_factory=Counter)
    known_usd: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)
    calls_without_usage: int = 0
    failed: int = 0
    answered: int = 0
    exhausted: dict[str, None] = field(default_factory=dict)

    def used_up(self, calls: int | None, tokens: int | None, usd: float | None) -> str | None:
        """The first budget of which nothing is left: `calls`, `tokens` or `cost_usd`. Calls count when they begin."""
        if calls is not None and self.calls >= calls:
            return "calls"
        if tokens is not None and self.tokens >= tokens:
            return "tokens"
        return "cost_usd" if usd is not None and self.cost_usd >= usd else None

    def is_reserved(self, tokens: int | None, usd: float | None) -> bool:
        """Whether calls in flight may use up what is left."""
        return (tokens is not None and self.tokens + self.reserved_tokens >= tokens) or (
            usd is not None and self.cost_usd + self.reserved_usd >= usd
        )

    def reserve(self, tokens: int, usd: float) -> None:
        self.calls += 1
        self.reserved_tokens += tokens
        self.reserved_usd += usd

    def settle(self, ticket: Ticket, tokens: Tokens, cost: Cost, spent: Spent, answered: bool) -> None:
        self.reserved_tokens -= ticket.tokens
        self.reserved_usd -= ticket.usd
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
        self._budgets = budgets
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
        set_ = self._budgets
        whole = self._runs.setdefault(run, _Account())
        account = None if rollout is None else self._rollouts.setdefault((run, rollout), _Account())
        while True:
            self._refuse(set_, whole, account)
            own = account is not None and account.is_reserved(set_.max_policy_tokens, set_.max_policy_cost_usd)
            if not own and not whole.is_reserved(set_.max_run_tokens, set_.max_run_cost_usd):
                break
            await self._changed.wait()
        accounts = (whole,) if account is None else (account, whole)
        for one in accounts:
            one.reserve(tokens, usd)
        return Ticket(accounts, tokens, usd)

    def settle(self, ticket: Ticket, tokens: Tokens, cost: Cost, spent: Spent, *, answered: bool = True) -> None:
        """A call has ended."""
        for one in ticket.accounts:
            one.settle(ticket, tokens, cost, spent, answered)
        self._changed.set()
        self._changed = asyncio.Event()

    def take(self, rollout: str, *, run: str | None = None) -> PolicyCalls:
        """What a rollout that has ended used; it is forgotten here.

        An agent server of others does not pass on the name of the run: its calls are found without.
        """
        account = self._rollouts.pop((run, rollout), None) or self._rollouts.pop((None, rollout), _Account())
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
        )

    def _refuse(self, set_: Budgets, whole: _Account, account: _Account | None) -> None:
        run = whole.used_up(set_.max_run_calls, set_.max_run_tokens, set_.max_run_cost_usd)
        if run is not None:
            raise _refusal(RUN_BUDGET_EXHAUSTED, f"max_run_{run}", "the run", set_)
        if account is None:
            return
        own = account.used_up(set_.max_policy_calls, set_.max_policy_tokens, set_.max_policy_cost_usd)
        if own is not None:
            account.exhausted[f"max_policy_{own}"] = None
            raise _refusal(BUDGET_EXHAUSTED, f"max_policy_{own}", "this rollout", set_)


def _refusal(kind: str, name: str, of: str, budgets: Budgets) -> EpisodeFailure:
    limit = getattr(budgets, name)
    amount = shown(limit) if name.endswith("usd") else limit
    # Harnesses take words such as "exceeded" and "too many" for an overlong conversation, and would ask again.
    return EpisodeFailure(kind, f"{name} = {amount} of {of} is used up")
