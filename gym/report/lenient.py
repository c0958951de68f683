"""Rows as data that may hold anything: what is not of the kind that is asked for is left out."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

Fields: TypeAlias = Mapping[str, Any]


def text_of(content: Any) -> str:
    """The text of a message's content or of a tool's output; a part that has none is named."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    texts = (part.get("text") or part.get("refusal") or f"[{part.get('type')}]" for part in parts)
    return "\n".join(map(str, texts))


def mapping_of(value: Any) -> Fields:
    """The mapping; of anything else an empty one."""
    return value if isinstance(value, dict) else {}


def mappings_of(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def known(fields: Fields) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def iso_time(seconds: Any) -> str | None:
    """Unix time as ISO 8601, in UTC; None for what is no time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if is_number(seconds) else None
    except (OverflowError, ValueError, OSError):
        return None


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
