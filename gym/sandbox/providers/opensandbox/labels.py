"""Metadata of sandboxes: whose they are, so that what a killed Gym left behind can be found and removed.

A deployment accepts only what Kubernetes accepts as a label, so other texts are rewritten.
"""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from gym.sandbox.interface import Found
from gym.sandbox.owner import Owner

MACHINE_ID = Path("/etc/machine-id")
LONGEST = 63
MANAGED = {"gym-managed": "true"}
MACHINE = "gym-machine"
CREATOR = "gym-creator"
LEASE = "gym-lease"

_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Process:
    """A process of some machine, as labels tell it."""

    machine: str
    owner: Owner

    @classmethod
    def current(cls) -> Self:
        """The running one."""
        return cls(_machine(), Owner.current())

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Self | None:
        """The one that made a sandbox; None where the metadata does not tell."""
        with suppress(KeyError, ValueError):
            pid, _, start_time = metadata["gym-process"].partition(".")
            owner = Owner(
                pid=int(pid), start_time=start_time, pid_namespace=metadata["gym-pids"], boot=metadata["gym-boot"]
            )
            return cls(metadata[MACHINE], owner)
        return None

    def labels(self) -> dict[str, str]:
        """The same as metadata."""
        return {
            MACHINE: self.machine,
            "gym-boot": self.owner.boot,
            "gym-pids": value(self.owner.pid_namespace),
            "gym-process": f"{self.owner.pid}.{self.owner.start_time}",
        }

    def gone(self, observer: Process) -> bool:
        """Whether it has certainly ended, as `observer` sees it. Of other machines nothing is known."""
        if self.owner.boot != observer.owner.boot:
            return self.machine == observer.machine
        return self.owner.gone(observer.owner.model_copy(update={"pid_namespace": value(observer.owner.pid_namespace)}))


def value(text: str) -> str:
    """`text` as the value of a label; two that differ stay different."""
    fit = _UNFIT.sub("_", text).strip("_.-")
    if fit == text and len(fit) <= LONGEST:
        return fit
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return f"{fit[: LONGEST - 9]}-{digest}".lstrip("-")


def metadata(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as a deployment accepts them."""
    return {value(name): value(text) if text else "" for name, text in labels.items()}


def found(sandbox_id: str, said: Mapping[str, str], created_at: float, observer: Process) -> Found:
    """A sandbox of the deployment, by its metadata."""
    maker = Process.of(said)
    own = {name: text for name, text in said.items() if not name.startswith("gym-")}
    left = maker is not None and maker.gone(observer)
    return Found(sandbox_id, own, maker.owner.pid if maker else None, created_at, left)


def _machine() -> str:
    """Tells machines apart, also those that were copied from one disk."""
    known = MACHINE_ID.read_text() if MACHINE_ID.exists() else ""
    return hashlib.sha256(f"{known.strip()} {socket.gethostname()}".encode()).hexdigest()[:16]
