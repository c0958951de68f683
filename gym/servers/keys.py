"""Session keys: what a harness gets as its API key.

A key names one rollout's identity and opens only what its session may use; it dies at close. So calls are attributed
without the harness's cooperation, and a stolen key is worth nothing outside its session. Keys are signed with the
run's secret, so that every process of a run can read them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

PREFIX = "gym-"
LONGEST_SECONDS = 7 * 24 * 3600.0
"""Bound for a key whose episode has no deadline."""
PRUNE_AT = 10_000
"""Revoked sessions among which the expired ones are looked for."""


@dataclass(frozen=True)
class Identity:
    """Whose call it is.

    Attributes:
        rollout: The episode, as `EpisodeId.key`.
        session: Agent or Resources session.
        activation: 1-based number of the activation within the session.
        run: The run that asked for the episode, by its name; None where the caller has none.
    """

    rollout: str
    session: str
    activation: int = 1
    run: str | None = None


@dataclass(frozen=True)
class SessionKey:
    """What a key says.

    Attributes:
        instances: Instances that it opens.
        expires_at: Unix time.
    """

    identity: Identity
    instances: frozenset[str]
    expires_at: float


class KeyRing:
    """Issues and reads the session keys of a run.

    The process that issued a key knows when its session was closed; other processes `learn` it, and otherwise rely on
    the key's expiry.

    Attributes:
        issuer: Names this process in its keys: they are revoked together, by `learn(issuer, ...)`, when it dies.
        tell: Is called with a session whose keys were revoked here, and when the last of them would have expired; set
            where the run has other processes.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._issued: dict[str, float] = {}
        self._revoked: dict[str, float] = {}
        self._prune_at = PRUNE_AT
        self.issuer = ""
        self.tell: Callable[[str, float], None] | None = None

    def issue(self, identity: Identity, instances: Iterable[str], seconds: float | None = None) -> str:
        """A key for `identity` that opens `instances` for `seconds`, or until it is revoked.

        One of a session that was closed opens nothing.
        """
        expires_at = time.time() + (LONGEST_SECONDS if seconds is None else min(seconds, LONGEST_SECONDS))
        if identity.session in self._revoked:
            expires_at = 0.0
        else:
            self._issued[identity.session] = max(expires_at, self._issued.get(identity.session, 0.0))
        said = [
            identity.rollout,
            identity.session,
            identity.activation,
            identity.run,
            sorted(instances),
            int(expires_at * 1000) / 1000,
            self.issuer,
        ]
        payload = base64.urlsafe_b64encode(json.dumps(said, separators=(",", ":")).encode()).decode().rstrip("=")
        return f"{PREFIX}{payload}.{self._signature(payload)}"

    def read(self, key: str) -> SessionKey | None:
        """What a key says, or None for one that is not ours, has expired, or whose session or issuer is gone."""
        payload, _, signature = key.removeprefix(PREFIX).rpartition(".")
        if not key.startswith(PREFIX) or not hmac.compare_digest(signature.encode(), self._signature(payload).encode()):
            return None
        padded = payload + "=" * (-len(payload) % 4)
        rollout, session, activation, run, instances, expires_at, issuer = json.loads(base64.urlsafe_b64decode(padded))
        if expires_at <= time.time() or session in self._revoked or issuer in self._revoked:
            return None
        return SessionKey(Identity(rollout, session, activation, run), frozenset(instances), expires_at)

    def revoke(self, session: str) -> None:
        """Closes all keys of a session, here and, by `tell`, in the other processes of the run."""
        expires_at = self._issued.pop(session, None)
        self.learn(session, time.time() + LONGEST_SECONDS if expires_at is None else expires_at)
        if expires_at is not None and self.tell is not None:
            self.tell(session, expires_at)

    def learn(self, session: str, expires_at: float) -> None:
        """Refuses the keys of a session, or of an issuer, from now on, until they would have expired anyway."""
        if len(self._revoked) >= self._prune_at:
            now = time.time()
            self._revoked = {name: at for name, at in self._revoked.items() if at > now}
            self._prune_at = max(PRUNE_AT, 2 * len(self._revoked))
        self._revoked[session] = expires_at

    def revoked(self) -> dict[str, float]:
        """The sessions and issuers whose keys are refused, and until when (Unix time)."""
        return dict(self._revoked)

    def _signature(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()
