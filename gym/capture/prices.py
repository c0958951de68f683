"""What a call costs. A price that nobody knows stays unknown; it is never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from gym.capture.usage import Tokens
from gym.errors import Problem, UserError

Source = Literal["provider", "table", "free"]
MILLION = 1_000_000


def _no_switch(given: Any) -> Any:
    if isinstance(given, bool):
        raise ValueError("true and false are no amounts")
    return given


Usd = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_no_switch)]


class Price(BaseModel):
    """Prices of a model, in USD per million tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    input: Usd = Field(description="Input tokens that were neither read from a cache nor written to one.")
    cached_input: Usd | None = Field(None, description="Input tokens read from the provider's cache; null: as `input`.")
    cache_write: Usd | None = Field(None, description="Input tokens written to the provider's cache; null: as `input`.")
    output: Usd = Field(description="Output tokens, reasoning included.")

    @property
    def is_zero(self) -> bool:
        """Whether nothing costs anything, however many tokens there are."""
        return not (self.input or self.cached_input or self.cache_write or self.output)

    def of(self, tokens: Tokens) -> float | None:
        """The cost in USD; None where the tokens are not known."""
        if self.is_zero:
            return 0.0
        if tokens.input_tokens is None or tokens.output_tokens is None:
            return None
        cached = min(tokens.cached_input_tokens or 0, tokens.input_tokens)
        written = min(tokens.cache_write_input_tokens or 0, tokens.input_tokens - cached)
        cached_price = self.input if self.cached_input is None else self.cached_input
        write_price = self.input if self.cache_write is None else self.cache_write
        read = (tokens.input_tokens - cached - written) * self.input + cached * cached_price + written * write_price
        return (read + tokens.output_tokens * self.output) / MILLION


Prices = dict[str, Price]
"""Prices by the model's name, or by a pattern such as `local/*`."""

FREE = Price(input=0, output=0)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call cost. `usd` is None where that is unknown; then there is no `source` either."""

    usd: float | None = None
    source: Source | None = None


def price_of(prices: Mapping[str, Price], model: str) -> Price | None:
    """The price of a model: under its own name, else of the first pattern that it fits."""
    if model in prices:
        return prices[model]
    return next((price for pattern, price in prices.items() if fnmatchcase(model, pattern)), None)


def cost_of(tokens: Tokens, price: Price | None) -> Cost:
    """The provider's own word where it gave one, else the table's."""
    if tokens.cost_usd is not None:
        return Cost(tokens.cost_usd, "provider")
    usd = None if price is None else price.of(tokens)
    return Cost() if usd is None else Cost(usd, "table")


def load(path: Path) -> Prices:
    """A price table: a YAML mapping of names or patterns to prices.

    Raises:
        UserError: The file cannot be read, or is no such table: every problem with its line.
    """
    from gym.composition.files import load as loaded

    file, prices, problems = loaded(path), {}, []
    for name, given in file.data.items():
        try:
            prices[str(name)] = Price.model_validate(given)
        except ValidationError as error:
            for item in error.errors(include_url=False, include_context=False):
                key = (str(name), *map(str, item["loc"]))
                what = _WRONG.get(item["type"], "is no amount of 0 or more")
                problems.append(Problem(what, FORM, file.where(key), ".".join(key)))
    if problems:
        raise UserError(problems)
    return prices


FORM = "a price is `{input: ..., cached_input: ..., cache_write: ..., output: ...}`, in USD per million tokens"
_WRONG = {"missing": "is missing", "extra_forbidden": "is unknown", "model_type": "is no price"}


def total_line(known_usd: float | None, calls: int, without_price: int) -> str:
    """`0.00468 USD known, 1 of 4 calls without a price`; a total that leaves something out says so."""
    if not without_price:
        return f"{shown(known_usd or 0.0)} USD"
    known = "unknown" if known_usd is None else f"{shown(known_usd)} USD known"
    return f"{known}, {without_price} of {calls} call{'' if calls == 1 else 's'} without a price"


def shown(usd: float) -> str:
    """An amount without needless zeros; below a millionth of a dollar as it is."""
    text = f"{usd:.6f}".rstrip("0").rstrip(".")
    return text if text != "0" or not usd else f"{usd:.3g}"
