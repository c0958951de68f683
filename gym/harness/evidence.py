"""The outcome of a harness, judged from its own events. An exit code alone proves nothing.

A model's behaviour is gradable, also where it used up its budget; what failed it (model server, tool server, sandbox,
the harness itself) is an `EpisodeFailure`. What the model's commands write may stand among the events: only kinds that
a model server tells are taken from words, and `gym.rollouts.outcomes` holds them against what that server counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gym.errors import in_one_line
from gym.failures import OF_MODEL_SERVERS, POLICIES, EpisodeFailure, exhausted_budget
from gym.harness.adapter import Evidence, Reading

REASON_CHARACTERS = 500
TIMEOUT = "timeout"
TOOLS = "tool_server_error"
TRUSTED = frozenset((*OF_MODEL_SERVERS, "configuration"))
"""Kinds that an adapter may name itself; it names `configuration` for nothing that a model's command could write."""

_OUR_KIND = re.compile(r"""["'](?:kind|code)\\?["']\s*:\s*\\?["']([a-z_]+)""")
_STATUS = re.compile(r"(?<![\d.])(?:status(?: code)?:? |http:? |error:? |\()?([45]\d\d)(?![\d.])", re.IGNORECASE)
_WORDS = (
    ("context_length_exceeded", r"context.?(length|window)|prompt is too long|maximum context|too many tokens"),
    ("provider_unreachable", r"refused|unreachable|ENOTFOUND|ECONN|connection error|fetch failed|network error"),
    ("provider_unreachable", r"timed? ?out|idle timeout|body timeout|waiting for network"),
    ("provider_rate_limited", r"rate limit|too many requests|quota"),
    ("provider_refused", r"unauthorized|authentication|api key|forbidden"),
    ("provider_error", r"high demand|internal server error|overloaded|bad gateway|service unavailable"),
    ("malformed_answer", r"finish_reason|stream (ended|disconnected|closed)|json|unexpected token|unexpected end|pars"),
)
_STATUSES = {401: "provider_refused", 403: "provider_refused", 404: "provider_refused", 429: "provider_rate_limited"}


@dataclass(frozen=True)
class Verdict:
    """A gradable outcome: a Responses status and, where it is `incomplete`, the reason."""

    status: str
    reason: str | None = None


def judge(harness: str, reading: Reading, evidence: Evidence, unchecked: Sequence[str] = ()) -> Verdict:
    """What became of an activation.

    Args:
        unchecked: Settings that nobody but the harness could check: they are named where it never came to its work.

    Raises:
        EpisodeFailure: It cannot be graded, and why.
    """
    if evidence.timed_out:
        return _out_of_time(harness, reading, evidence)
    if reading.error is not None:
        if spent := exhausted_budget(reading.error):
            return _out_of_budget(harness, reading.error, *spent)
        raise EpisodeFailure(_kind(reading, reading.error), f"{harness}: {shortened(reading.error)}", stage="agent")
    if reading.stop is None and (spent := exhausted_budget(_end(evidence))):
        return _out_of_budget(harness, _end(evidence), *spent)
    if reading.stop is None and unchecked and evidence.exit_code and not reading.items and not reading.model_calls:
        told = f"{harness} did not begin (exit code {evidence.exit_code}); check {', '.join(unchecked)}"
        words = shortened(evidence.stderr or evidence.stdout) or "it wrote nothing"
        raise EpisodeFailure("configuration", f"{told}: {words}", stage="agent")
    if reading.stop is None:
        raise EpisodeFailure("agent_error", _unfinished(harness, evidence), stage="agent")
    if not reading.items and not reading.model_calls and not (reading.usage and reading.usage.total_tokens):
        message = f"{harness} ended without asking the model: {_end(evidence)}"
        raise EpisodeFailure("agent_error", message, stage="agent")
    return Verdict("completed") if reading.stop == "completed" else Verdict("incomplete", reading.stop)


def _kind(reading: Reading, error: str) -> str:
    """Tools that are required are connected before the model is asked: a run that did anything had them."""
    if reading.error_kind == TOOLS:
        return "agent_error" if reading.items or reading.model_calls else TOOLS
    return reading.error_kind if reading.error_kind in TRUSTED else kind_of(error)


def _out_of_time(harness: str, reading: Reading, evidence: Evidence) -> Verdict:
    """Time is a budget of the policy. Where it was never heard, something else took the time."""
    if reading.items:
        return Verdict("incomplete", TIMEOUT)
    waited = f"after {evidence.duration_seconds:.0f} s there was no answer of the model"
    raise EpisodeFailure("agent_timeout", f"{harness}: {waited}; {_end(evidence)}", stage="agent")


def _out_of_budget(harness: str, text: str, kind: str, name: str) -> Verdict:
    """The rollout's own budget is the policy's. What the run's ends is no fault of this policy, and is not graded."""
    if POLICIES[kind].graded:
        return Verdict("incomplete", name)
    raise EpisodeFailure(kind, f"{harness}: {shortened(text)}", stage="agent")


def _unfinished(harness: str, evidence: Evidence) -> str:
    return f"{harness} ended (exit code {evidence.exit_code}) without its final event: {_end(evidence)}"


def _end(evidence: Evidence) -> str:
    """The last words of a process, for a message."""
    lines = [line.strip() for line in (evidence.stderr or evidence.stdout).splitlines() if line.strip()]
    return shortened(" / ".join(lines[-3:]) or "it wrote nothing")


def shortened(text: str) -> str:
    """One line of bounded length, without control characters, its beginning and its end kept."""
    line = in_one_line(text)
    half = REASON_CHARACTERS // 2
    return line if len(line) <= REASON_CHARACTERS else f"{line[:half]} ... {line[-half:]}"


def kind_of(error: str) -> str:
    """The kind of failure that a harness's error message means.

    Our model servers name the kind in the body of their refusals; harnesses mostly quote it. Otherwise the HTTP status
    tells, then words.
    """
    for kind in _OUR_KIND.findall(error):
        if kind in OF_MODEL_SERVERS:
            return str(kind)
    for kind, words in _WORDS[:1]:
        if re.search(words, error, re.IGNORECASE):
            return kind
    for status in map(int, _STATUS.findall(error)):
        return _STATUSES.get(status, "provider_error")
    for kind, words in _WORDS[1:]:
        if re.search(words, error, re.IGNORECASE):
            return kind
    return "agent_error"
