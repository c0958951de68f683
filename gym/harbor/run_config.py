"""The run configuration that `gym eval run FOLDER --agent NAME` writes and runs.

It is an ordinary configuration, so it can be read, edited and run again with `--config`:

    config_paths:
    - conf/model-provider/openai.yaml                          # none for oracle and nop, which ask no model
    - conf/sandbox/docker.yaml
    - responses_api_agents/pi_agent/configs/pi_agent.yaml      # or another file of the group `agent`
    - environment_servers/harbor/configs/harbor.yaml
    concurrency: 4
    agent:
      _inherit_from: pi_agent
    experiment:
      _inherit_from: harbor
      environment_servers:
        harbor:
          agent_server: {type: responses_api_agents, name: agent}
          sandbox_provider: sandbox
          datasets:
          - name: mytasks
            type: benchmark
            taskset: mytasks
            jsonl_fpath: results/harbor/mytasks/tasks.jsonl    # one row a task folder: `gym.harbor.rows`
            prepare_script: gym/harbor/prepare.py
            prepare_script_args: {folder: path/to/mytasks, target: results/..., taskset: mytasks}

`oracle` and `nop` are options of the group `agent` like any harness: `responses_api_agents/oracle_agent/` and
`nop_agent/`. What tasks ask for is compared with provider and agent at planning: `gym.harbor.planning`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gym.composition import groups
from gym.composition.roots import shown
from gym.errors import Problem, UserError, did_you_mean
from gym.harbor.dataset import Dataset
from gym.harbor.rows import from_here

RESULTS = Path("results/harbor")
OWNER = "dataset"
"""In a folder of generated files: a link to the dataset whose they are."""
ENVIRONMENT = "environment_servers/harbor/configs/harbor.yaml"
PREPARE = "gym/harbor/prepare.py"
WITHOUT_MODEL = ("oracle", "nop")
CONCURRENCY = 4
"""Episodes at once; each has containers of its own, with the memory that its task asks for."""
SEAL = re.compile(r"^# unedited: ([0-9a-f]{16})\n", re.MULTILINE)


@dataclass(frozen=True)
class Choice:
    """What the user asks for.

    Attributes:
        agent: Option of the group `agent`: `NAME` or `NAME/PROFILE`.
        model_provider: Option of its group; None: `openai` for agents that ask a model.
        settings: Top-level settings of the run to keep in the file, such as `policy_model_name`.
    """

    agent: str
    sandbox: str = "docker"
    model_provider: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def asks_model(self) -> bool:
        """Whether the agent asks a model at all."""
        return self.agent.removesuffix("_agent") not in WITHOUT_MODEL


def place(dataset: Dataset) -> Path:
    """The folder of a dataset's generated files, relative to the working directory; it is made.

    It has the name of the taskset. Where that belongs to another dataset of the same name, a digest of the dataset's
    place is added: neither may write over the rows and the configuration of the other.
    """
    usual = RESULTS / dataset.taskset
    usual.mkdir(parents=True, exist_ok=True)
    owner, target = usual / OWNER, os.path.relpath(dataset.folder, usual)
    try:
        owner.symlink_to(target)  # in one step: another command may do the same now
    except FileExistsError:
        if not owner.is_symlink() or str(owner.readlink()) != target:
            return RESULTS / f"{dataset.taskset}-{hashlib.sha256(target.encode()).hexdigest()[:8]}"
    return usual


def rows_path(dataset: Dataset) -> Path:
    """Where the rows of a dataset go."""
    return place(dataset) / "tasks.jsonl"


def write(dataset: Dataset, choice: Choice, rows: Path | None = None) -> Path:
    """Writes the run configuration.

    Args:
        rows: Its rows, beside which it is written; by default those of the whole dataset.

    Raises:
        UserError: An option does not exist; or the file is there and was edited.
    """
    rows = rows or rows_path(dataset)
    path = rows.parent / f"run_config_{choice.agent.replace('/', '_')}.yaml"
    text = "".join(_text(dataset, choice, rows))
    sealed = f"# unedited: {_seal(text)}\n{text}"
    if path.is_file() and not _is_ours(path.read_text(encoding="utf-8")):
        fix = f"run it with `gym eval run --config {path}`, or remove it"
        raise UserError(Problem("was edited, and would be written over", fix, str(path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sealed, encoding="utf-8")
    return path


def _is_ours(text: str) -> bool:
    """Whether a file is as it was written."""
    found = SEAL.match(text)
    return found is not None and _seal(text[found.end() :]) == found[1]


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(dataset: Dataset, choice: Choice, rows: Path) -> Iterator[str]:
    yield "# Written by `gym eval run FOLDER --agent NAME`. Edit it, and run it with `gym eval run --config THIS`.\n"
    agent = _option("agent", choice.agent)
    provider = choice.model_provider or "openai"
    files = [_option("model-provider", provider)] if choice.asks_model else []
    files += [_option("sandbox", choice.sandbox), agent]
    yield _yaml({"config_paths": [*(shown(option.path) for option in files), ENVIRONMENT]})
    split = {} if dataset.table.gym.type == "benchmark" else {"split": dataset.table.gym.type}
    yield _yaml({**dict(choice.settings), **split, "concurrency": CONCURRENCY})
    if agent.template is not None:
        yield _yaml({"agent": {"_inherit_from": agent.template}})
    yield _yaml({"experiment": _experiment(dataset, rows)})


def _yaml(data: dict[str, Any]) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)


def _option(group: str, name: str) -> groups.Option:
    option = groups.option(group, name)
    if option is None:
        known = groups.options(group)
        fix = did_you_mean(name, known) or f"one of {', '.join(known)}"
        raise UserError(Problem(f"no {group} `{name}`", fix, "command line"))
    return option


def _experiment(dataset: Dataset, rows: Path) -> dict[str, Any]:
    gym = dataset.table.gym
    source = {"harbor": gym.source, "domain": gym.domain, "verified": gym.verified}
    told = {name: value for name, value in source.items() if value is not None}
    entry: dict[str, Any] = {
        "name": dataset.taskset,
        "type": gym.type,
        "taskset": dataset.taskset,
        "jsonl_fpath": str(rows),
        "prepare_script": PREPARE,
        "prepare_script_args": {
            "folder": from_here(dataset.folder),
            "target": str(rows),
            "taskset": dataset.taskset,
        },
        "num_repeats": gym.defaults.num_repeats,
    }
    entry |= {"license": gym.license} if gym.license else {}
    entry |= {"source": told} if told else {}
    settings = {
        "agent_server": {"type": "responses_api_agents", "name": "agent"},
        "sandbox_provider": "sandbox",
        "datasets": [entry],
    }
    return {"_inherit_from": "harbor", "environment_servers": {"harbor": settings}}
