"""The process that owns a sandbox, so that a later one can tell whether anybody still needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from gym.sandbox import processes

PID_NAMESPACE = Path("/proc/self/ns/pid")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Owner(BaseModel):
    """A process, told apart from later ones with the same number."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pid: int
    start_time: str
    pid_namespace: str
    boot: str

    @classmethod
    def current(cls) -> Self:
        """The running process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            start_time=processes.start_time(pid),
            pid_namespace=str(PID_NAMESPACE.readlink()),
            boot=BOOT_ID.read_text().strip(),
        )

    def gone(self, observer: Owner) -> bool:
        """Whether it has certainly ended, as `observer` sees it. Another container's processes are not seen.

        Another boot counts as ended, which holds for what is stored on one machine only.
        """
        if self.boot != observer.boot:
            return True
        if self.pid_namespace != observer.pid_namespace:
            return False
        return not processes.alive(self.pid) or processes.start_time(self.pid) != self.start_time
