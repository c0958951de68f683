"""What gives a secret away: its key's name, or its place in a text such as a URL. And how to quote what may hold one.

A name counts by its *last* word, so that `max_tokens`, `tokenizer` and `monkey` are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

MASK = "***"
SESSION_KEY = re.compile(r"gym-[\w-]+\.[0-9a-f]{64}")
"""A session key of ours, wherever it stands: `gym.servers.keys`."""
SHOWN = 60
"""Characters of a value that a message quotes."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_SECRET_WORDS = frozenset(
    {"key", "token", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd"}
    | {"authorization", "credential", "credentials", "cookie", "cookies"}
)
_SECRET_ENDINGS = ("password", "passwd", "secret", "apikey", "authtoken")
_SECRET_PLURALS = frozenset({("api", "keys"), ("access", "keys"), ("access", "tokens"), ("auth", "tokens")})

_URL = re.compile(r"://\S+")
_USER_AND_PASSWORD = re.compile(
    # The second form is for passwords with an unescaped `/`, `?` or `#`; it must not take a port for one.
    r"""://(?P<user>[^\s:/?#@\[]*):(?:(?P<password>[^\s/?#"]*)|(?!\d+(?:[/?#]|$))(?P<odd>[^\s@"'<>,]{0,200}))@"""
)
_TOKEN_AS_USER = re.compile(r"(?:(?<=http)|(?<=https))://(?P<user>[^\s:/?#@\[]{16,})(?::|:x-oauth-basic)?@")
_PARAMETER = re.compile(r"""[?&#](?P<name>[\w.\[\]-]+)=(?P<value>[^&#\s"'<>]+)""")
_ASSIGNMENTS = re.compile(r"(?:[^\s;=]+=[^\s;]*(?:[\s;]+|$))+")
_ASSIGNMENT = re.compile(r"(?P<name>[^\s;=]+)=(?P<value>[^\s;]+)")
_HEADER = re.compile(r"\s*(?P<name>[\w-]+):\s+(?P<value>\S.*)")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a key, header or variable is named like a secret: by its last word, however the words are joined."""
    words = [word.lower() for word in _WORD.findall(name)]
    while words and (words[-1].isdigit() or words[-1] == "v"):  # api_key_2, api_key_v2
        words.pop()
    if not words:
        return False
    return words[-1] in _SECRET_WORDS or words[-1].endswith(_SECRET_ENDINGS) or tuple(words[-2:]) in _SECRET_PLURALS


def mask_credentials(text: str) -> str:
    """The text with credentials masked that its form gives away: in URLs, `name=value` and `Header: value`."""
    for start, end in reversed(credentials(text)):
        text = text[:start] + MASK + text[end:]
    return text


def credentials(text: str) -> list[tuple[int, int]]:
    """Spans of credentials in a text, in order, none within another."""
    found = {span for url in _URL.finditer(text) for span in _in_url(text, *url.span())}
    if header := _HEADER.fullmatch(text):
        found |= {header.span("value")} if is_secret_name(header["name"]) else set()
    elif "://" not in text and _ASSIGNMENTS.fullmatch(text):
        found |= {item.span("value") for item in _ASSIGNMENT.finditer(text) if is_secret_name(item["name"])}
    spans: list[tuple[int, int]] = []
    for start, end in sorted(found, key=lambda span: (span[0], -span[1])):
        if start < end and (not spans or start >= spans[-1][1]):
            spans.append((start, end))
    return spans


def _in_url(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    for match in _TOKEN_AS_USER.finditer(text, start, end):
        yield match.span("user")
    for match in _USER_AND_PASSWORD.finditer(text, start, end):
        yield match.span("password" if match["password"] is not None else "odd")
    for match in _PARAMETER.finditer(text, start, end):
        if is_secret_name(match["name"]):
            yield match.span("value")


def shown(value: Any, hidden: bool = False) -> str:
    """A value as a message quotes it: its kind, and itself unless it is secret or long."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if value == "":
        return "an empty text"
    if hidden:
        return "a secret value that does not fit"
    if isinstance(value, bool):
        return str(value).lower()
    text = short(mask_credentials(str(value)))
    return text if isinstance(value, int | float) else f"the text `{text}`"


def short(text: str) -> str:
    """One line of at most `SHOWN` characters."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."
