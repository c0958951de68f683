"""Dataset declarations, as they stand in the `datasets` list of a server's block."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gym.servers.base import OPERATIONAL

DatasetType = Literal["train", "validation", "benchmark", "example"]


class DatasetConfig(BaseModel):
    """One dataset: where its rows are, how they are made, and which taskset they form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="Name of the dataset.")
    type: DatasetType = Field(description="What the rows are for; `split` of a run selects by it.")
    jsonl_fpath: str = Field(
        description="File with one JSON row a line, relative to the project.", json_schema_extra=OPERATIONAL
    )
    taskset: str | None = Field(None, description="Rows are wrapped as tasks of this taskset; absent: flat rows.")
    prepare_script: str | None = Field(
        None, description="Python file whose `prepare()` writes `jsonl_fpath`.", json_schema_extra=OPERATIONAL
    )
    prepare_script_args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of `prepare()`.")
    prepare_dependencies: list[str] = Field(default_factory=list, description="Packages that the prepare script needs.")
    num_repeats: int = Field(
        1, ge=1, description="Attempts a task; the run's own `num_repeats` wins.", json_schema_extra=OPERATIONAL
    )
    license: str | None = Field(None, description="Licence of the data.")
    source: dict[str, Any] | None = Field(None, description="Where the data come from.")
    agent: str | None = Field(None, description="Agent instance that flat rows go to.")
