"""Users of a sandbox. OpenSandbox knows them by number only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gym.errors import UserError
from gym.sandbox.providers.opensandbox.files import Files
from gym.sandbox.providers.opensandbox.remote import Identity

PASSWD = "/etc/passwd"
PASSWD_BYTES = 1024 * 1024


@dataclass(frozen=True)
class User:
    """Whom a command runs as, and what its environment says of that."""

    identity: Identity | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class Users:
    """Looks users up in one sandbox."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[str, User] = {}

    async def find(self, user: str | int | None) -> User:
        """The user of that name or number; the one that OpenSandbox uses, for None.

        Raises:
            UserError: there is no such name.
        """
        if user is None:
            return User()
        asked = str(user)
        if asked not in self._known:
            self._known |= await self._listed()
        if asked in self._known:
            return self._known[asked]
        if not asked.isdecimal():
            raise UserError(f"the sandbox has no user `{asked}`; name one of its {PASSWD}, or a number")
        return User(Identity(int(asked), int(asked)))

    async def _listed(self) -> dict[str, User]:
        try:
            content = await self._files.read(PASSWD, PASSWD_BYTES)
        except OSError:
            content = b""
        found: dict[str, User] = {}
        for line in content.decode("utf-8", "replace").splitlines():
            fields = line.split(":")
            if len(fields) < 6 or not (fields[2].isdecimal() and fields[3].isdecimal()):
                continue
            name, _, uid, gid, _, home = fields[:6]
            user = User(Identity(int(uid), int(gid)), {"HOME": home, "USER": name, "LOGNAME": name})
            for key in (name, uid):
                found.setdefault(key, user)
        return found
