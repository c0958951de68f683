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
    """A provider failed or refused.

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
        super().__init__(kind, message)
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


def status_within(answer: Any) -> int | None:
    """The status of an error that came with status 200, as gateways send it when their own upstream fails."""
    code = _error_in(answer).get("code")
    return code if isinstance(code, int) and 400 <= code <= 599 else None


def failure_within_stream(answer: Any) -> ProviderFailure:
    """The failure that an error event in the middle of a stream is: a 5xx, unless it says otherwise."""
    error = _error_in(answer)
    named = {name: status for status, name in ANTHROPIC_TYPES.items()} | STATUS_OF_CODES
    known = (named.get(str(error.get(name))) for name in ("code", "type"))
    return provider_failure(status_within(answer) or next(filter(None, known), 500), answer, "an error event")


STATUS_OF_CODES = {
    "context_length_exceeded": 400,
    "invalid_request_error": 400,
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
}


def _error_in(answer: Any) -> Mapping[str, Any]:
    error = answer.get("error") if isinstance(answer, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def _message_of(answer: Any) -> str:
    """The text of an error body: `error.message`, `error`, `message` or `detail`; empty for any other shape."""
    if not isinstance(answer, Mapping):
        return ""
    found = answer.get("error") or answer.get("message") or answer.get("detail") or ""
    found = found.get("message", found) if isinstance(found, Mapping) else found
    return found if isinstance(found, str) else json.dumps(found)


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
