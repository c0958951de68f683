"""`dataset.toml`: Harbor's own tables (schema 1.0), and the `[gym]` table, which Harbor ignores."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gym.harbor.config import Many, Package, Table
from gym.harbor.names import dataset_name, package_name
from gym.harbor.scaling import Defaults
from gym.tasks.datasets import DatasetType

Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]


class DatasetPackage(Package):
    """`[dataset]`."""

    name: Annotated[str, AfterValidator(dataset_name)]


class TaskRef(Table):
    """`[[tasks]]`: a task of the dataset, and the content that it must have."""

    name: Annotated[str, AfterValidator(package_name)]
    digest: Digest


class FileRef(Table):
    """`[[files]]`: a file beside dataset.toml."""

    path: str = Field(pattern=r"^[^/\\]+$")
    digest: Digest | None = None


class TaskOverride(Table):
    """`[gym.tasks."<task>"]`: keys of task.toml that this dataset sets. They are checked where they take effect."""

    agent: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    verifier: dict[str, Any] = {}
    solution: dict[str, Any] = {}


class GymTable(Table):
    """`[gym]`.

    Attributes:
        license: Licence of the data.
        type: What the tasks are for; `split` of a run selects by it.
        allowed_agents: Harnesses that may run the tasks; absent: any. Oracle and nop always may.
        source: Where the dataset comes from.
    """

    license: str | None = None
    type: DatasetType = "benchmark"
    allowed_agents: Many[str] | None = None
    domain: str | None = None
    verified: bool | None = None
    source: str | None = None
    defaults: Defaults = Defaults()
    tasks: dict[str, TaskOverride] = {}


class DatasetTable(Table):
    """A whole dataset.toml."""

    schema_version: str = "1.0"
    dataset: DatasetPackage | None = None
    metadata: dict[str, Any] = {}
    tasks: Many[TaskRef] = ()
    files: Many[FileRef] = ()
    gym: GymTable = GymTable()
