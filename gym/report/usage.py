"""What a run used and what it cost: sums that say what they leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from gym.capture.prices import total_line

USAGE_FIELDS = ("input_tokens", "output_tokens", "model_calls")


class UsageTotals:
    """Plain sums over rollouts; a rollout that does not say is unknown, not 0."""

    def __init__(self) -> None:
        self._totals: dict[str, int | None] = dict.fromkeys(USAGE_FIELDS)
        self._unknown = dict.fromkeys(USAGE_FIELDS, 0)

    def add(self, usage: Mapping[str, object]) -> None:
        """Count one rollout, or one failed try that reached the model."""
        for name in USAGE_FIELDS:
            value = usage.get(name)
            if isinstance(value, int | float):
                self._totals[name] = (self._totals[name] or 0) + int(value)
            else:
                self._unknown[name] += 1

    def summary(self) -> dict[str, Any]:
        """Total per field (None where no rollout said), and `unknown`: how many rollouts each total leaves out."""
        return {**self._totals, "unknown": {name: count for name, count in self._unknown.items() if count}}


class CostTotals:
    """What the policy cost, summed over finished rollouts and failed tries. What is unknown is left out, and said."""

    def __init__(self) -> None:
        self._usd: Fraction | None = None
        self._priced = self._unpriced = 0

    def add(self, usage: Mapping[str, object]) -> None:
        """Counts one rollout, or one failed try."""
        priced, unpriced, usd = (usage.get(name) for name in ("calls_with_price", "calls_without_price", "cost_usd"))
        self._priced += priced if isinstance(priced, int) else 0
        self._unpriced += unpriced if isinstance(unpriced, int) else 0
        if isinstance(usd, int | float) and math.isfinite(usd):
            self._usd = (self._usd or Fraction()) + Fraction(usd)

    def summary(self) -> dict[str, Any] | None:
        """Total, and the calls that it leaves out; None where no call was counted."""
        calls = self._priced + self._unpriced
        if not calls:
            return None
        known = None if self._usd is None else float(self._usd)
        text = total_line(known, calls, self._unpriced)
        return {"known_usd": known, "calls": calls, "calls_without_price": self._unpriced, "text": text}
