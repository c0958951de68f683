"""What the local provider needs of a way to keep commands apart from this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local.command import Launch
from gym.sandbox.providers.local.record import Record
from gym.sandbox.providers.local.tree import Tree

Reach: TypeAlias = Mapping[int, tuple[str, int]]
"""Loopback ports inside that lead to Gym servers, with host and port of each on this machine."""


@dataclass(frozen=True)
class Prepared:
    """The work directory of a new sandbox as its processes see it, and what they find in their environment."""

    workdir: str
    env: dict[str, str]


@dataclass(frozen=True)
class Place:
    """The directory of a sandbox on this machine, and how it was made."""

    directory: Path
    record: Record


class Isolation(Protocol):
    """`Bubblewrap` or `Plain`."""

    @property
    def name(self) -> str:
        """The value of the setting `isolation` that means this one."""

    @property
    def isolated(self) -> bool:
        """Whether untrusted code is kept away from this machine."""

    @property
    def own_namespace(self) -> bool:
        """Whether commands run in a user namespace of their own."""

    @property
    def mounts(self) -> bool:
        """Whether host folders can be mounted."""

    @property
    def users(self) -> frozenset[str]:
        """Ways to name the one user that commands run as."""

    @property
    def reserved(self) -> frozenset[str]:
        """Top-level names that belong to the system."""

    def describe(self) -> str:
        """One line for the log."""

    def prepare(self, directory: Path, spec: SandboxSpec) -> Prepared:
        """Make the folders of a sandbox in its new directory."""

    def files(self, place: Place) -> Tree:
        """The files of a sandbox, for access from the host."""

    def launch(self, place: Place, argv: list[str], env: dict[str, str], reach: Reach) -> Launch:
        """How to start one command; `env` is complete."""
