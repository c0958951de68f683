"""Secrets are never shown: not in printed configurations, logs, errors, requests or results.

A value is secret because of its place (the schema marks it, its key is named like one, its mapping's `env_from_host`
lists it) or of its origin (an environment variable that is named like one). A configuration is masked by place;
everything that is known to be secret is replaced by value as well, wherever it ends up.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from gym.composition.credentials import MASK, SESSION_KEY, credentials, is_secret_name, mask_credentials
from gym.errors import Problem

__all__ = ["MASK", "RedactingFilter", "Redactor", "Secret", "is_secret_name", "mask_credentials"]

SHORTEST = 4
"""Shorter values are masked in their place only: replaced everywhere, they would garble the text around them."""

KeyPath = tuple[str, ...]
IsSecret = Callable[[KeyPath], bool]
Leaf = Callable[[KeyPath, Any, int, str], Any]

# What people write where a key is asked for and none is needed. Searched for everywhere, these would garble results.
_NO_SECRET = frozenset(
    {"empty", "none", "null", "true", "false", "dummy", "unused", "placeholder", "default", "test", "fake", "mock"}
    | {"example", "local", "ollama", "user", "password", "token", "secret", "value", "string", "text", "admin"}
    | {"anonymous", "changeme", "not-needed", "no-key", "not-set", "unset"}
)
_STAND_IN = re.compile(r"<[\w |/-]*>|\[[\w -]*\]|\$?\{[\w.:-]*\}|\?\?\?|[*xX]+")
_NUMBER = re.compile(r"[-+.0-9eE]*[0-9][-+.0-9eE]*")

_ENV = re.compile(r"oc\.env:\s*['\"]?([A-Za-z_]\w*)")
_INTERPOLATION = re.compile(r"\$\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")

_SCHEME = re.compile(r"(?:bearer|basic|token|digest|apikey|negotiate)\s+(\S+)", re.IGNORECASE)


@dataclass(frozen=True)
class Secret:
    """A value that must not be shown.

    Attributes:
        source: Where it comes from, such as `env HF_TOKEN`; empty where that is not known.
    """

    value: str
    source: str = ""

    def __repr__(self) -> str:
        return f"Secret({MASK!r}, source={self.source!r})"


BY_NAME, BY_RULE = 1, 2
"""How a place is secret: by its name (numbers there are none), or by a rule that knows (numbers too). 0: not."""


def _walk(
    value: Any,
    leaf: Leaf,
    is_secret: IsSecret,
    path: KeyPath = (),
    how: int = 0,
    source: str = "",
    from_host: frozenset[str] = frozenset(),
) -> Any:
    """The configuration with `leaf(path, value, how, source)` in place of each plain value."""

    def below(name: str, item: Any, named: bool, listed: frozenset[str] = frozenset()) -> Any:
        here = (*path, name)
        deeper = max(how, BY_RULE if is_secret(here) else BY_NAME if named else 0)
        return _walk(item, leaf, is_secret, here, deeper, f"env {name}" if name in from_host else source, listed)

    if isinstance(value, Mapping):
        listed = _listed(value)
        return {
            key: below(str(key), item, str(key) in from_host or is_secret_name(str(key)), listed)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [below(str(index), item, _is_secret_flag(value, index)) for index, item in enumerate(value)]
    return leaf(path, value, how, source)


def _listed(mapping: Mapping[Any, Any]) -> frozenset[str]:
    """Names under `env_from_host`: what its sibling mappings hold under these names comes from the host."""
    names = mapping.get("env_from_host")
    return frozenset(map(str, names)) if isinstance(names, list | tuple | Mapping) else frozenset()


def _is_secret_flag(arguments: list[Any] | tuple[Any, ...], index: int) -> bool:
    """Whether the argument before this one is a flag such as `--api-key`."""
    flag = arguments[index - 1] if index else None
    return isinstance(flag, str) and flag.startswith("-") and "=" not in flag and is_secret_name(flag)


def _hides(value: Any, how: int) -> bool:
    """Whether a value in a secret place is masked: null, switches, empty text and mere references are not."""
    if not how or value is None or isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return how == BY_RULE
    text = str(value).strip()
    return text not in ("", "???") and not re.fullmatch(r"\$\{[^{},]*\}", text)


class Redactor:
    """Masks what is secret.

    Attributes:
        paths: Key paths of the values that `mapping` masks as a whole; known to redactors made by `of`.
        values: The secrets themselves, for another process that has to mask them.
    """

    def __init__(self, secrets: Iterable[Secret] = (), is_secret: IsSecret = lambda _: False) -> None:
        known = {secret.value: secret for secret in sorted(secrets, key=lambda secret: bool(secret.source))}
        self.paths: frozenset[KeyPath] = frozenset()
        self._is_secret = is_secret
        self.values = tuple(known)
        self._pattern = _pattern(known)
        labels = {value: f"{MASK} (from {secret.source})" for value, secret in known.items() if secret.source}
        self._labels = {value: label for value, label in labels.items() if self.text(label) == label}

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any] | None,
        resolved: Mapping[str, Any],
        is_secret: IsSecret = lambda _: False,
        environ: Mapping[str, str] | None = None,
    ) -> Redactor:
        """Finds the secrets of a configuration.

        Args:
            config: The same configuration before resolution, with its `${oc.env:NAME}`; it tells where values come
                from. None if there is none.
            resolved: The resolved configuration.
            is_secret: Whether the schema marks a key path as secret.
            environ: Environment that `config` was resolved with; default: this process's.
        """
        origins = _Origins(config or {}, os.environ if environ is None else environ)

        def hidden(path: KeyPath) -> bool:
            return path in origins.secret or is_secret(path)

        secrets, paths = list(origins.embedded), set()

        def note(path: KeyPath, value: Any, how: int, source: str) -> None:
            if _hides(value, how):
                paths.add(path)
                secrets.append(Secret(str(value), origins.source.get(path, source)))
            elif isinstance(value, str):
                secrets.extend(Secret(value[start:end]) for start, end in credentials(value))

        _walk(resolved, note, hidden)
        redactor = cls(secrets, hidden)
        redactor.paths = frozenset(paths)
        return redactor

    def mapping(self, resolved: Mapping[str, Any]) -> dict[str, Any]:
        """A masked copy of a configuration. A masked value names its source, where that is known."""

        def masked(_path: KeyPath, value: Any, how: int, _source: str) -> Any:
            text = self.text(value) if isinstance(value, str) else ""
            if _hides(value, how) or text == MASK:
                return self._labels.get(str(value), MASK)
            return mask_credentials(text) if text else value

        return dict(self.json(_walk(resolved, masked, self._is_secret)))

    def text(self, text: str) -> str:
        """The text with every known secret and session key masked.

        JSON stays JSON: a secret of digits is never cut out of a number.
        """
        text = SESSION_KEY.sub(MASK, text) if "gym-" in text else text
        return self._pattern.sub(_replacement, text) if self._pattern else text

    def learn(self, value: str) -> None:
        """Masks a further value from now on, such as the run's token."""
        self._pattern = _pattern((*self.values, value))

    def problem(self, problem: Problem) -> Problem:
        """A problem without secrets in its words."""
        return replace(problem, what=self.text(problem.what), fix=self.text(problem.fix))

    def json(self, data: Any) -> Any:
        """A copy of JSON data with the known secrets masked in its strings; numbers stay."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {self._key(key): self.json(item) for key, item in data.items()}
        return [self.json(item) for item in data] if isinstance(data, list | tuple) else data

    def _key(self, key: Any) -> Any:
        """A key that reads like a field's name is structure, even where a careless secret spells the same word."""
        return key if not isinstance(key, str) or re.fullmatch(r"[A-Za-z_]+", key) else self.text(key)


class _Origins:
    """Which values of a configuration come from environment variables.

    Attributes:
        source: `env NAME` for the paths whose whole value is one interpolation of variables.
        secret: Those of them whose variable is named like a secret.
        embedded: Values of variables named like secrets, wherever they are mentioned.
    """

    def __init__(self, config: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        self.source: dict[KeyPath, str] = {}
        self.secret: set[KeyPath] = set()
        self.embedded: list[Secret] = []
        self._environ = environ
        _walk(config, self._note, lambda _: False)

    def _note(self, path: KeyPath, value: Any, _how: int, _source: str) -> None:
        names = _ENV.findall(value) if isinstance(value, str) else []
        secret = [name for name in names if is_secret_name(name)]
        if names and _INTERPOLATION.fullmatch(value):
            self.source[path] = f"env {(secret or names)[0]}"
            self.secret |= {path} if secret else set()
        self.embedded += [Secret(self._environ[name], f"env {name}") for name in secret if self._environ.get(name)]


def _pattern(values: Iterable[str]) -> re.Pattern[str] | None:
    """One pattern for all spellings of all values, the longest first."""
    spellings = {spelling for value in values for part in _parts(value) for spelling in _spellings(part)}
    ordered = sorted((item for item in spellings if len(item) >= SHORTEST), key=lambda item: (-len(item), item))
    return re.compile("|".join(map(_literal, ordered))) if ordered else None


def _literal(spelling: str) -> str:
    if not _NUMBER.fullmatch(spelling):
        return re.escape(spelling)
    # Not within a word or a longer number; a letter before it may be the end of an escape such as \n.
    return rf"(?:(?<![\w.])|(?<=\\[nrt])){re.escape(spelling)}(?!\w|\.\d)"


def _parts(value: str) -> Iterator[str]:
    """A secret, and the parts of it that give it away: a scheme's token, a cookie's values, the lines of a key file."""
    whole = value.strip()
    parts = [whole]
    if scheme := _SCHEME.fullmatch(whole):
        parts.append(scheme[1])
    elif "=" in whole:
        parts += [item for _, _, item in (pair.strip().partition("=") for pair in whole.split(";")) if len(item) >= 8]
    parts += [line for line in map(str.strip, whole.splitlines()) if len(line) >= 16 and line[:5] != "-----"]
    return (part for part in parts if part.lower() not in _NO_SECRET and not _STAND_IN.fullmatch(part))


def _spellings(secret: str) -> Iterator[str]:
    """How a text may be written in JSON, YAML and URLs."""
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield secret.replace("'", "''")
    yield quote(secret, safe="", errors="replace")
    yield unquote(secret)


def _replacement(match: re.Match[str]) -> str:
    return match[0] if _NUMBER.fullmatch(match[0]) and _is_json_number(match) else MASK


def _is_json_number(match: re.Match[str]) -> bool:
    """Whether the match is in a place where JSON has a number: after a quoted key, or in a list."""
    text = match.string[: match.start()].rstrip(" \t\r\n-+.0123456789eE")
    if text.endswith(":"):
        return text[:-1].rstrip().endswith('"')
    head = text.rstrip(" \t\r\n-+.,0123456789eEtrufalsnINiy")  # numbers, true, false, null, Infinity, NaN
    items = text[len(head) :]
    return (head.endswith("[") and items[-1:] in ("", ",")) or (head.endswith(('"', "]", "}")) and items[-1:] == ",")


class RedactingFilter(logging.Filter):
    """Masks what a log record says: message, arguments, traceback. Attach it to handlers, so that it sees them all."""

    def __init__(self, redactor: Redactor) -> None:
        super().__init__()
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Masks the record in place; it always passes."""
        record.msg = self._masked(record.msg)
        if isinstance(record.args, Mapping):
            record.args = {key: self._masked(item) for key, item in record.args.items()}
        elif record.args:
            record.args = tuple(map(self._masked, record.args))
        if record.exc_info and record.exc_info[0] is not None:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            if (masked := self._redactor.text(text)) != text:
                record.exc_text, record.exc_info = masked, None
        if record.stack_info:
            record.stack_info = self._redactor.text(record.stack_info)
        return True

    def _masked(self, value: Any) -> Any:
        """The value itself where it shows no secret, so that `%d` and handlers that read arguments go on working."""
        if isinstance(value, str):
            return self._redactor.text(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        forms = (str(value), repr(value))
        return value if all(self._redactor.text(form) == form for form in forms) else self._redactor.text(forms[0])
