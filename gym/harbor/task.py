"""A Harbor task folder as typed, frozen objects: what runs, where, as whom, for how long, and which files it takes.

`load_task` reads `task.toml` and looks at the folder; everything that is wrong comes as one `UserError`, each problem
with file and line. A single-step task is a task with one step whose name is empty, so that a runner has one loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError
from gym.harbor.config import (
    Artifact,
    CollectHook,
    Environment,
    Healthcheck,
    NetworkMode,
    RewardStrategy,
    TaskTable,
    User,
)
from gym.harbor.scaling import Scales
from gym.harbor.toml import KeyPath, TomlFile

TASK_FILE = "task.toml"


@dataclass(frozen=True)
class Override:
    """What a dataset sets over task.toml: a table of its dataset.toml, written with the same keys, and factors."""

    values: Mapping[str, Any]
    file: TomlFile
    prefix: KeyPath
    scales: Scales = field(default_factory=Scales)

    def sets(self, key: KeyPath) -> bool:
        """Whether a key, or something above or below it, comes from here."""
        value: Any = self.values
        for part in key:
            if not isinstance(value, Mapping):
                return True
            if part not in value:
                return False
            value = value[part]
        return True


@dataclass(frozen=True)
class Origin:
    """Where the keys of a task are written: for messages that end in `file:line`.

    Attributes:
        renamed: Key that stands in the file, by the key that it stands for.
    """

    file: TomlFile
    renamed: Mapping[KeyPath, KeyPath] = field(default_factory=dict)
    override: Override | None = None

    def where(self, key: KeyPath) -> str:
        """`file:line` of a key; of what is not written, of the closest table that is."""
        key = self.renamed.get(key, key)
        if self.override is not None and key and self.override.sets(key):
            return self.override.file.where(self.override.prefix + key)
        return self.file.where(key)

    def problem(self, key: KeyPath, what: str, fix: str = "", data: dict[str, object] | None = None) -> Problem:
        """A problem at a key."""
        written = self.renamed.get(key, key)
        return Problem(what, fix, self.where(key), ".".join(written), (0, self.file.line(written)), data or {})


@dataclass(frozen=True)
class Network:
    """What may be reached. `hosts` counts for `allowlist`; `key` is where it is written, for messages."""

    mode: NetworkMode
    hosts: tuple[str, ...] = ()
    key: KeyPath = ()


@dataclass(frozen=True)
class Container:
    """A container that a task describes.

    Attributes:
        config: Resources, variables, workdir, healthcheck, MCP servers, build timeout.
        docker_image: Image to start from; None: the one built from `context`.
        context: Folder with the Dockerfile; None with `docker_image`.
        network: What it may reach while nothing else is said for a phase.
        key: Table that describes it, for messages.
    """

    config: Environment
    docker_image: str | None
    context: Path | None
    network: Network
    key: KeyPath


@dataclass(frozen=True)
class AgentPhase:
    """How the agent runs in a step.

    Attributes:
        timeout_seconds: None: no bound.
        user: Name or number; None: the image's own.
        network: While the agent runs; the container's own unless the task says otherwise.
    """

    timeout_seconds: float | None
    user: User | None
    network: Network


@dataclass(frozen=True)
class VerifierPhase:
    """How the verifier of a step runs.

    Attributes:
        env: Variables of the test script, `${VAR}` as text: see `gym.harbor.variables`.
        user: None: the image's own.
        network: While it runs.
        container: Its own container; None: it runs in the agent's.
        tests: Folders whose files go to /tests, in this order, later ones over earlier ones; none where the image
            of its own container has /tests already.
        collect: Commands that save state after the agent's end, in order.
    """

    timeout_seconds: float
    env: Mapping[str, str]
    user: User | None
    network: Network
    container: Container | None
    tests: tuple[Path, ...]
    collect: tuple[CollectHook, ...]


@dataclass(frozen=True)
class Step:
    """One step of a task; the only one of a single-step task has no name.

    Attributes:
        index: Position, from 0; its keys in task.toml are under `steps.<index>`.
        instruction: What the agent is told, without canary lines.
        workdir: Files to put into the working directory before the step; None: none.
        setup: Script among them to run there; None: none.
        solution: Folder with `solve.sh`, for /solution; None: the task has none.
        trajectory: What an agent is to have done before, as ATIF; None: nothing.
        min_rewards: Lowest reward of each name that lets the next step run; empty: it always runs.
        artifacts: All to collect after the step, `/logs/artifacts` among them.
    """

    name: str
    index: int
    instruction: str
    agent: AgentPhase
    verifier: VerifierPhase
    workdir: Path | None
    setup: Path | None
    solution: Path | None
    trajectory: Path | None
    healthcheck: Healthcheck | None
    min_rewards: Mapping[str, float]
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True)
class Task:
    """A task folder that was read and found complete.

    Attributes:
        folder: Absolute.
        table: task.toml as written (overrides of a dataset applied), in today's spellings.
        environment: The agent's container.
        reward_strategy: How the rewards of steps become the task's.
    """

    folder: Path
    table: TaskTable
    origin: Origin
    environment: Container
    steps: tuple[Step, ...]
    reward_strategy: RewardStrategy

    @property
    def task_id(self) -> str:
        """Name of the folder."""
        return self.folder.name

    @property
    def name(self) -> str:
        """`organisation/name` of task.toml, else the folder's name."""
        return self.table.task.name if self.table.task else self.folder.name

    @property
    def has_steps(self) -> bool:
        """Whether it is written as a task of several steps."""
        return bool(self.table.steps)

    @property
    def has_solution(self) -> bool:
        """Whether an oracle can run every step."""
        return all(step.solution is not None for step in self.steps)

    def problem(self, key: KeyPath, what: str, fix: str = "") -> Problem:
        """A problem at a key of task.toml, such as `("environment", "gpus")`, with its place."""
        return self.origin.problem(key, what, fix)


def load_task(folder: Path, override: Override | None = None) -> Task:
    """Reads a task folder.

    Args:
        override: Settings of its dataset.

    Raises:
        UserError: Everything that is wrong with the folder.
    """
    from gym.harbor.reading import read

    task, problems = read(folder.absolute(), override)
    if task is None or problems:
        raise UserError(problems)
    return task
