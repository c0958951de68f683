"""What is known of a sandbox from its start, and what of that a borrower gets to know."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gym.sandbox.spec import JSON, Network


@dataclass(frozen=True)
class Facts:
    """What is known of a sandbox.

    Attributes:
        workdir: Where commands start.
        network: As it was asked for.
        disk_mib: Size of the largest file that a command can write.
        lease: What borrowers must name; a new one takes the sandbox back from them.
        keep: Processes that belong to the sandbox itself, as `shell.PROCESSES` prints them; empty for a borrower.
    """

    workdir: str
    network: Network
    disk_mib: int | None
    lease: str
    keep: str = ""

    @classmethod
    def lent(cls, descriptor: Mapping[str, JSON]) -> Self:
        """What a descriptor says."""
        disk_mib = descriptor.get("disk_mib")
        return cls(
            workdir=str(descriptor.get("workdir")),
            network="none" if descriptor.get("network") == "none" else "open",
            disk_mib=disk_mib if isinstance(disk_mib, int) else None,
            lease=str(descriptor.get("lease")),
        )

    def lend(self) -> dict[str, JSON]:
        """The same for a descriptor."""
        return {"workdir": self.workdir, "network": self.network, "disk_mib": self.disk_mib, "lease": self.lease}


def new_lease() -> str:
    """What borrowers name from now on."""
    return secrets.token_hex(8)
