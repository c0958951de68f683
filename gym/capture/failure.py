"""What went wrong in a call, as the record has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gym.apis.errors import ProviderFailure, api_error
from gym.failures import EpisodeFailure
from gym.servers.base import ServerError


def told(error: Exception) -> dict[str, Any]:
    """A failure as data, from which `failure_of` makes it again."""
    seen = api_error(error)
    data: dict[str, Any] = {"kind": seen.kind or None, "message": getattr(error, "message", None) or seen.text}
    if isinstance(error, ProviderFailure):
        provider = {"status": error.status, "text": error.text, "details": error.details}
        data["provider"] = provider | {"retry_after": error.retry_after}
    elif not isinstance(error, EpisodeFailure):
        data["status"] = seen.status
    return data


def failure_of(data: Mapping[str, Any]) -> Exception:
    """The failure that was recorded."""
    kind, message = data.get("kind"), str(data.get("message") or "")
    if kind is None:
        return ServerError(int(data.get("status", 500)), message)
    if (provider := data.get("provider")) is not None:
        return ProviderFailure(kind, message, **provider)
    return EpisodeFailure(kind, message)
