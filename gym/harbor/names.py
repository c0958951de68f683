"""Entries of an allow-list, and names of steps and packages: what the format accepts."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network

PACKAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')
_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(?:COM|LPT)[1-9¹²³])", re.IGNORECASE)


def host(text: str) -> str:
    """One allow-list entry in its plain form: `name`, `*.name`, an address, or a range of addresses.

    Raises:
        ValueError: It is none of these.
    """
    entry = text.strip().lower().rstrip(".")
    if "://" in entry:
        raise ValueError(f"`{text}` is a URL; an allow-list has hosts, such as `{entry.split('://')[1].split('/')[0]}`")
    if "%" not in entry:
        if "/" in entry:
            return _range(text, entry)
        try:
            return ip_address(entry).compressed
        except ValueError:
            pass
    name = entry.removeprefix("*.")
    if not all(map(_LABEL.fullmatch, name.split("."))) or (name != entry and _is_address(name)):
        raise ValueError(
            f"`{text}` is no host: write a hostname, *.hostname, an IP address or a range such as 10.0.0.0/8"
        )
    return entry


def _range(text: str, entry: str) -> str:
    try:
        return ip_network(entry, strict=True).compressed
    except ValueError as error:
        raise ValueError(f"`{text}` is no range of addresses: {error}") from error


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def dataset_name(text: str) -> str:
    """A dataset's name: as a task's, or without the organisation while it is not published.

    Raises:
        ValueError: It is neither.
    """
    package_name(text if "/" in text else f"local/{text}")
    return text


def package_name(text: str) -> str:
    """A task's name.

    Raises:
        ValueError: It is not `organisation/name` with exactly one slash.
    """
    if not PACKAGE.fullmatch(text) or ".." in text:
        given = text.removeprefix("local/")
        raise ValueError(
            f"`{given}` is no name: write organisation/name, with one slash, of letters, digits, `-`, `_` and `.`"
        )
    return text


def step_name(text: str) -> str:
    """A step's name, which is its folder's on every system.

    Raises:
        ValueError: It cannot be the name of a folder.
    """
    is_device = _DEVICE.fullmatch(text.partition(".")[0].rstrip())
    if not text.strip() or text in (".", "..") or text.endswith((".", " ")) or _UNSAFE.search(text) or is_device:
        raise ValueError(f"`{text}` cannot be the name of a folder under steps/")
    if len(text.encode()) > 255:
        raise ValueError("the name of a step has at most 255 bytes")
    return text
