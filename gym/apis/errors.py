"""What went wrong, as clients of each API expect to read it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym.failures import BUDGET_EXHAUSTED, RUN_BUDGET_EXHAUSTED, EpisodeFailure
from gym.servers.base import ServerError, one_line

NO_STATUS = dict.fromkeys(
    ("script_exhausted", "context_length_exceeded", BUDGET_EXHAUSTED, RUN_BUDGET_EXHAUSTED, "replay_mismatch"), 400
)
"""Statuses of failures that no provider gave one: after a 400 no harness asks again. Any other is a 502: something
behind this server failed."""


TRIED = {"x-should-retry": "false"}
"""Tells the official clients that the request was tried as often as it may be: without it each would try again. Every
error has it, as no one but this server tries a request again."""


class ProviderFailure(EpisodeFailure):
    """A provider failed or refused. Its message is one line.

    Attributes:
        status: The provider's own HTTP status; None where there was no answer.
        text: The provider's own text, without secrets; empty where there was none.
        details: `type`, `code` and `param` of the provider's error, as far as it has them.
        retry_after: The provider's `Retry-After`, as it was sent.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        status: int | None = None,
        text: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: str | None = None,
    ) -> None:
        super().__init__(kind, " ".join(message.split()))
        self.status = status
        self.text = text
        self.details = dict(details or {})
        self.retry_after = retry_after

    def scrubbed(self, scrub: Callable[[str], str]) -> ProviderFailure:
        """The same failure with texts that `scrub` has cleaned of secrets."""
        clean = self.told(scrub(self.message))
        clean.text = scrub(self.text)
        clean.details = {key: scrub(value) if isinstance(value, str) else value for key, value in self.details.items()}
        return clean

    def told(self, message: str) -> ProviderFailure:
        """The same failure with another message for the user."""
        return ProviderFailure(
            self.kind,
            message,
            status=self.status,
            text=self.text,
            details=self.details,
            retry_after=self.retry_after,
        )


CONTEXT_LENGTH = re.compile(r"context.?(length|window|size)|maximum context|prompt is too long|too many tokens", re.I)
"""How engines say that a conversation no longer fits: there is no common code."""


def kind_of(status: int) -> str:
    """The failure kind of an HTTP status."""
    if status == 429:
        return "provider_rate_limited"
    return "provider_error" if status >= 500 or status in (408, 425) else "provider_refused"


def provider_failure(status: int, answer: Any, text: str = "") -> ProviderFailure:
    """The failure that an error body is.

    Args:
        status: The HTTP status, or the one that the body itself has.
        answer: The body as JSON; anything else counts as none.
        text: What to say where the body has no message.
    """
    error = _error_in(answer)
    details = {name: error[name] for name in ("type", "code", "param") if error.get(name) is not None}
    said = _message_of(answer) or text
    kind = "provider_refused" if details.get("code") == "insufficient_quota" else kind_of(status)
    if status in (400, 413, 422) and CONTEXT_LENGTH.search(f"{details.get('code')} {said}"):
        kind = "context_length_exceeded"
    return ProviderFailure(kind, said, status=status, text=said, details=details)


def failure_in(said: Any, event: str = "") -> ProviderFailure | None:
    """What an answer, or an event of a stream, of any API tells itself that went wrong; None: nothing did.

    Gateways answer with status 200 although their own upstream fails, before the answer or in the middle of it.

    Args:
        said: The decoded JSON.
        event: The event's name.
    """
    return failure_shown(said, event) or failure_hidden(said)


def failure_shown(said: Any, event: str = "") -> ProviderFailure | None:
    """An error in the API's own shape, which clients of the API take for one. Arguments as `failure_in`."""
    if not isinstance(said, dict):
        return None
    if said.get("type") == "response.failed":
        return failure_of_error(said.get("response"))
    if said.get("error") or "error" in (event, said.get("type"), said.get("object")):
        return failure_of_error(said)
    return None


def failure_hidden(said: Any) -> ProviderFailure | None:
    """A failure that clients take for an answer: a choice or a response that came to no good end."""
    if not isinstance(said, dict):
        return None
    choices = said.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and (choice.get("error") or choice.get("finish_reason") in FAILED_FINISHES):
            ended = f"the answer ended with the finish reason `{choice.get('finish_reason')}`"
            return failure_of_error({"error": choice.get("error") or ended})
    answer = said.get("response") if said.get("type") in RESPONSE_ENDS else said
    if isinstance(answer, dict) and (answer.get("object") == "response" or "output" in answer):
        status = answer.get("status")
        if status not in (None, "completed", "incomplete"):
            return failure_of_error({"error": answer.get("error") or f"the response ended with the status `{status}`"})
    return None


def failure_of_error(answer: Any) -> ProviderFailure:
    """The failure that an error without an HTTP status is: a 5xx, unless it says otherwise."""
    error = _error_in(answer)
    code = error.get("code")
    named = {name: status for status, name in ANTHROPIC_TYPES.items()} | STATUS_OF_CODES
    known = (named.get(str(error.get(name))) for name in ("code", "type"))
    status = code if isinstance(code, int) and 400 <= code <= 599 else next(filter(None, known), 500)
    return provider_failure(status, answer, "an error event")


FAILED_FINISHES = ("error", "abort")
"""Finish reasons of a choice whose generation failed: of gateways, and of an engine that gave it up."""

RESPONSE_ENDS = ("response.completed", "response.incomplete")
"""Events of a Responses stream that have the response in its end."""

STATUS_OF_CODES = {
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
}


def _error_in(answer: Any) -> Mapping[str, Any]:
    """The error object of a body; some engines have its fields in the body itself."""
    if not isinstance(answer, Mapping):
        return {}
    error = answer.get("error")
    if isinstance(error, Mapping):
        return error
    fields = answer if error is None and "error" in (answer.get("object"), answer.get("type")) else {}
    return {name: value for name, value in fields.items() if value != "error"}


def _message_of(answer: Any) -> str:
    """The text of an error body: `error.message`, `error`, `message` or `detail`; empty for any other shape.

    Gateways put the reason of the provider behind them into `error.metadata.raw`.
    """
    if not isinstance(answer, Mapping):
        return ""
    found = answer.get("error") or answer.get("message") or answer.get("detail") or ""
    metadata = found.get("metadata") if isinstance(found, Mapping) else None
    reason = metadata.get("raw") if isinstance(metadata, Mapping) else None
    found = found.get("message", found) if isinstance(found, Mapping) else found
    said, why = (text if isinstance(text, str) else json.dumps(text) for text in (found, reason or ""))
    return said if why in said else f"{said}: {why}"


@dataclass(frozen=True)
class ApiError:
    """An error to be put into an API's shape.

    Attributes:
        kind: Kind of the failure, a key of `gym.failures.POLICIES`; empty for a request that was refused.
        extra: What Gym's own clients read beside the API's shape: `detail`, and `failure` for a failed episode.
    """

    status: int
    text: str
    kind: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=lambda: TRIED)
    extra: Mapping[str, Any] = field(default_factory=dict)


def api_error(error: Exception) -> ApiError:
    """Any exception of a handler as an error that a client is told."""
    if isinstance(error, ServerError):
        return ApiError(error.status, error.detail, extra={"detail": error.detail})
    if not isinstance(error, EpisodeFailure):
        text = one_line(error)
        return ApiError(500, text, extra={"detail": text})
    extra = {"detail": error.message, "failure": {"kind": error.kind, "stage": error.stage}}
    status = NO_STATUS.get(error.kind, 502)
    if not isinstance(error, ProviderFailure):
        return ApiError(status, error.message, error.kind, extra=extra)
    headers = {**TRIED, **({"retry-after": error.retry_after} if error.retry_after else {})}
    text = error.text or error.message
    return ApiError(error.status or status, text, error.kind, error.details, headers, extra)


OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def openai_error(error: ApiError) -> dict[str, Any]:
    """The `error` object of the OpenAI APIs. Codes are the provider's own, or the kind of the failure."""
    by_status = "server_error" if error.status >= 500 else "invalid_request_error"
    code = "context_length_exceeded" if error.kind == "context_length_exceeded" else error.details.get("code")
    return {
        "message": error.text,
        "type": error.details.get("type") or OPENAI_TYPES.get(error.status, by_status),
        "param": error.details.get("param"),
        "code": code or error.kind or None,
    }


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The `error` object of the Messages API. Harnesses know an overlong conversation by the words of its text."""
    by_status = "api_error" if error.status >= 500 else "invalid_request_error"
    text = error.text
    if error.kind == "context_length_exceeded" and "prompt is too long" not in text.lower():
        text = f"prompt is too long: {text}"
    own = error.details.get("type")
    known = {*ANTHROPIC_TYPES.values(), "api_error", "invalid_request_error"}
    return {"type": own if own in known else ANTHROPIC_TYPES.get(error.status, by_status), "message": text}
