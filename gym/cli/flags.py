"""The flags of the `gym` command, and how each becomes a Hydra override.

Only the standard library is imported here: `gym --help` stays light.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gym.errors import Problem, UserError

PREFIXES = "+~"
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Flag:
    """A flag.

    Attributes:
        kind: Whether it takes text, a number, many texts (one each time it is given), or nothing.
        key: Setting or config group that it overrides; empty for flags that only concern the command.
    """

    name: str
    help: str
    metavar: str = ""
    kind: Literal["text", "number", "many", "switch"] = "text"
    key: str = ""

    @property
    def dest(self) -> str:
        """Name of its value."""
        return self.name.lstrip("-").replace("-", "_")

    def override(self, value: str | bool) -> str:
        """The override that this flag with this value stands for."""
        if self.kind == "switch":
            return f"{self.key}=true"
        text = str(value)
        is_plain = self.kind == "number" and re.fullmatch(r"-?\d+|null", text)
        return f"{self.key}={text if is_plain else quoted(text)}"


def quoted(text: str) -> str:
    r"""Text as a value of a Hydra override that means exactly this text, whatever is in it.

    Hydra's grammar: in single quotes, backslashes count only before a quote. OmegaConf's: `${` opens an interpolation
    unless a backslash stands before it, and backslashes before it are doubled.
    """
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return "'" + re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), literal) + "'"


def combined(given: Sequence[tuple[Flag, str | bool]], words: Sequence[str]) -> list[str]:
    """The overrides typed by the user, and those that flags stand for.

    Raises:
        UserError: A flag and an override set one key to two values; a word that is no override.
    """
    problems = [
        Problem(f"`{word}` is neither a flag nor an override", "write key=value", COMMAND_LINE)
        for word in words
        if "=" not in word and not word.startswith("~")
    ]
    by_key = {_key(word): word for word in words}
    lines = []
    for flag, value in given:
        line, word = flag.override(value), by_key.get(flag.key)
        if word is None:
            lines.append(line)
        elif not _same(line, word):
            typed, other = _shown(flag, value, word)
            what = f"`{typed}` and `{other}` set `{flag.key}` to different values"
            problems.append(Problem(what, "keep one of them", COMMAND_LINE, flag.key))
    if problems:
        raise UserError(problems)
    return [*words, *lines]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip(PREFIXES).strip()


def _shown(flag: Flag, value: str | bool, word: str) -> tuple[str, str]:
    """A flag and an override as a message quotes them."""
    from gym.composition.credentials import MASK, is_secret_name

    if is_secret_name(flag.key):
        return f"{flag.name} {MASK}", f"{word.partition('=')[0]}={MASK}"
    return flag.name if flag.kind == "switch" else f"{flag.name} {value}", word


def _same(line: str, word: str) -> bool:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    try:
        mine, typed = parser.parse_override(line), parser.parse_override(word)
    except HydraException:
        return True  # the composition tells what is wrong with the word
    return not typed.is_delete() and not typed.is_sweep_override() and bool(mine.value() == typed.value())


JSON = Flag("--json", "print JSON on stdout", kind="switch")
CONFIG = Flag("--config", "compose this file; may be repeated, later files win", "FILE", kind="many")
SPLIT = Flag("--split", "datasets to run: train, validation, benchmark or example", "SPLIT", key="split")
AGENT = Flag("--agent", "harness (`gym list agents`)", "NAME[/PROFILE]", key="agent")
BENCHMARK = Flag("--benchmark", "benchmark (`gym list benchmarks`)", "NAME[/PROFILE]", key="benchmark")
ENVIRONMENT = Flag("--environment", "environment server (`gym list environments`)", "NAME", key="environment")
SANDBOX = Flag("--sandbox", "sandbox provider (`gym list sandboxes`)", "NAME", key="sandbox")
PROVIDER = Flag("--model-provider", "who serves the model (`gym list models`)", "NAME", key="model-provider")
MODEL_URL = Flag("--model-url", "endpoint of the model: policy_base_url", "URL", key="policy_base_url")
MODEL = Flag("--model", "name of the model: policy_model_name", "NAME", key="policy_model_name")
MODEL_KEY = Flag(
    "--model-api-key",
    "key of the endpoint: policy_api_key (others on this machine can read command lines; POLICY_API_KEY is safer)",
    "KEY",
    key="policy_api_key",
)
UNSUPPORTED = Flag(
    "--allow-unsupported-pairing",
    "waive allowed_agents and allowed_model_types, and say what was waived",
    kind="switch",
    key="allow_unsupported_pairing",
)
INPUT = Flag("--input", "rows to run instead of the declared datasets", "FILE", key="input")
TASK_IDS = Flag("--task-ids", "tasks to run, by id or pattern", "ID,...", key="task_ids")
LIMIT = Flag("--limit", "tasks to run", "N", kind="number", key="limit")
REPEATS = Flag("--num-repeats", "attempts a task", "N", kind="number", key="num_repeats")
IMAGES = Flag("--images", "remove the images that were built for tasks, too", kind="switch")
NO_SERVE = Flag("--no-serve", "use the servers that `gym env start` runs", kind="switch")

CHOICES = (CONFIG, AGENT, BENCHMARK, ENVIRONMENT, SANDBOX, PROVIDER)
"""Flags that select parts."""
SELECTORS = (*CHOICES, MODEL_URL, MODEL, MODEL_KEY)
"""Flags that say what is composed."""
RUN = (
    *SELECTORS,
    INPUT,
    Flag("--output", "run directory; one that has results is continued", "DIR", key="output"),
    SPLIT,
    TASK_IDS,
    LIMIT,
    Flag("--concurrency", "episodes at once", "N", kind="number", key="concurrency"),
    REPEATS,
    UNSUPPORTED,
    Flag("--overwrite", "start over in a directory that has results", kind="switch", key="overwrite"),
    Flag(
        "--max-attempts",
        "tries of an episode whose infrastructure fails",
        "N",
        kind="number",
        key="max_attempts",
    ),
    Flag("--fail-fast", "stop at the first failed episode", kind="switch", key="fail_fast"),
)
"""Flags of a run."""
