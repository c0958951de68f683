"""The first of two error families: what the user can fix.

Every such problem names a place, a dotted key, what is wrong and what to do. They are collected and shown together,
one line each, without a traceback; the process ends with exit code 2. The other family (an episode failed) lives in
`gym.failures`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One thing that the user can fix.

    Attributes:
        what: What is wrong, in one line.
        fix: What to do about it, in one line; empty where `what` says it already.
        where: `file:line`, or `command line`; empty where no place is known.
        key: Dotted key of the setting; empty for problems that concern no single setting.
        order: Sort key that puts problems in the order of files and lines.
        data: The same facts for machine-readable output (`kind`, `given`, `suggestions`, `available`).
    """

    what: str
    fix: str = ""
    where: str = ""
    key: str = ""
    order: tuple[int, int] = (1_000_000, 0)
    data: dict[str, object] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        head = "  ".join(part for part in (self.where, self.key) if part)
        body = f"{self.what}; {self.fix}" if self.fix else self.what
        return f"{head}  {body}" if head else body

    def as_dict(self) -> dict[str, object]:
        """The problem as JSON fields."""
        return {"where": self.where, "key": self.key, "what": self.what, "fix": self.fix, **self.data}


class UserError(Exception):
    """Wrong input: a list of problems, shown together. Exit code 2."""

    def __init__(self, problems: Problem | str | Sequence[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems: list[Problem] = sorted(problems, key=lambda problem: problem.order)
        super().__init__("\n".join(map(str, self.problems)))


def printable(text: str) -> str:
    """The text with a space for each control character: words from a sandbox must not steer the user's terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def in_one_line(text: str) -> str:
    """The text without control characters, line breaks and repeated spaces."""
    return " ".join(printable(text).split())


def closest(given: str, known: Iterable[str]) -> str | None:
    """The known name that `given` probably meant, or None. Never equal to `given`.

    Dash and underscore count as the same letter. A name is close when at most two letters differ (one, for names of
    up to three letters), or when most of it is the same.
    """
    names = sorted(set(known) - {given})
    folded = given.replace("-", "_").lower()
    by_fold = {name.replace("-", "_").lower(): name for name in reversed(names)}
    if folded in by_fold:
        return by_fold[folded]
    allowed = 1 if len(folded) <= 3 else 2
    ranked = sorted((edit_distance(folded, name), name) for name in by_fold)
    if ranked and ranked[0][0] <= allowed:
        return by_fold[ranked[0][1]]
    similar = difflib.get_close_matches(folded, list(by_fold), n=1, cutoff=0.75)
    return by_fold[similar[0]] if similar else None


def edit_distance(a: str, b: str) -> int:
    """Damerau-Levenshtein distance (optimal string alignment) between two short names."""
    previous: list[int] = []
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        before, previous, row = previous, row, [i]
        for j, right in enumerate(b, 1):
            cost = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
    return row[-1]


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A `did you mean ...?` clause, or an empty string where nothing is close."""
    name = closest(given, known)
    return f"did you mean `{name}`?" if name else ""
