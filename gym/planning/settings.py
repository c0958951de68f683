"""The settings of a run: the top-level keys that are neither instances nor components."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue

from gym.capture.budget import Budgets
from gym.capture.prices import Prices
from gym.servers.base import OPERATIONAL, Hosting
from gym.tasks.datasets import DatasetType

SECRET: dict[str, JsonValue] = {"operational": True, "secret": True}


class RunSettings(Budgets):
    """Settings of a run. Both doors, `gym.run` and `gym eval run`, share them."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    limit: int | None = Field(
        None, ge=1, description="Tasks to run; null: all of the split.", json_schema_extra=OPERATIONAL
    )
    task_ids: str | Annotated[list[str], Field(min_length=1)] | None = Field(
        None,
        description="Tasks to run, by id or by patterns such as `django__*`; null: all of the split.",
        json_schema_extra=OPERATIONAL,
    )
    num_repeats: int | None = Field(
        None, ge=1, description="Attempts a task; null: as the dataset says.", json_schema_extra=OPERATIONAL
    )
    concurrency: int = Field(64, ge=1, description="Episodes at once.", json_schema_extra=OPERATIONAL)
    split: DatasetType = Field("benchmark", description="Which datasets to run, by their type.")
    input: str | None = Field(None, description="JSONL file of rows to run instead of the declared datasets.")
    output: str | None = Field(
        None,
        description="Run directory, or a .jsonl file in it; null: results/<experiment>/<time>.",
        json_schema_extra=OPERATIONAL,
    )
    overwrite: bool = Field(
        False, description="Start over in a directory that has results.", json_schema_extra=OPERATIONAL
    )
    max_attempts: int = Field(
        3, ge=1, description="Tries of an episode whose infrastructure fails.", json_schema_extra=OPERATIONAL
    )
    fail_fast: bool = Field(False, description="Stop at the first failed episode.", json_schema_extra=OPERATIONAL)
    allow_unsupported_pairing: bool = Field(
        False,
        description="Waive the allowed_agents and allowed_model_types checks.",
        json_schema_extra=OPERATIONAL,
    )
    environment_routing_mode: Literal["agent", "legacy", "taskset"] | None = Field(
        None, description="How rows find their environment server; taskset refuses flat rows; null: as they come."
    )
    environment_server_routes: dict[str, str] = Field(
        default_factory=dict, description="Environment server instance of each taskset."
    )
    environment_server_name: str | None = Field(None, description="Environment server instance that flat rows go to.")
    agent_name: str | None = Field(
        None, description="Agent instance that flat rows go to, where several environment servers could take them."
    )
    default_host: str = Field(
        "127.0.0.1", description="Address that others reach the servers at.", json_schema_extra=OPERATIONAL
    )
    bind_host: str | None = Field(
        None, description="Address to bind; null: `default_host`.", json_schema_extra=OPERATIONAL
    )
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Port of the servers of this process; 0: a free one.",
        json_schema_extra=OPERATIONAL,
    )
    hosting: Hosting = Field(
        "in_process",
        description="Where servers run that do not say it themselves: all in this process, or each in its own.",
        json_schema_extra=OPERATIONAL,
    )
    server_spinup_timeout_seconds: float = Field(
        120, gt=0, description="How long a server process may take until it serves.", json_schema_extra=OPERATIONAL
    )
    use_absolute_ip: bool = Field(
        False, description="Take the machine's own address as `default_host`.", json_schema_extra=OPERATIONAL
    )
    capture: bool = Field(
        True, description="Record the calls of model servers in `model_calls/`.", json_schema_extra=OPERATIONAL
    )
    prices: Prices | str | None = Field(
        None,
        description="USD per million tokens (`input`, `cached_input`, `cache_write`, `output`) by model, or a YAML "
        "file with them.",
        json_schema_extra=OPERATIONAL,
    )
    policy_base_url: str | None = Field(
        None, description="Endpoint of the policy, used by the model templates.", json_schema_extra=OPERATIONAL
    )
    policy_api_key: str | None = Field(None, description="Key of the policy's endpoint.", json_schema_extra=SECRET)
    policy_model_name: str | None = Field(None, description="Name of the policy's model.")
    policy_script: str | None = Field(None, description="Script that the embedded model plays for these tasks.")
    replay_from: str | None = Field(None, description="Run directory that `model-provider=replay` plays back.")
