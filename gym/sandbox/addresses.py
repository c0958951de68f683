"""Addresses in URLs of Gym servers."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit, urlunsplit

from gym.errors import UserError


def split_url(url: str) -> tuple[str, int]:
    """Host and port of an HTTP URL.

    Raises:
        UserError: it has none.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError as error:
        raise UserError(f"`{url}` is no URL of a server: {error}") from error
    if not parts.hostname or port is None:
        raise UserError(f"`{url}` is no URL of a server: it needs the form http://host:port/path")
    return parts.hostname, port


def with_address(url: str, host: str, port: int) -> str:
    """The same URL at another address."""
    return urlunsplit(urlsplit(url)._replace(netloc=f"{f'[{host}]' if ':' in host else host}:{port}"))


def is_loopback(host: str) -> bool:
    """Whether an address means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
