"""A run as a job of Harbor's: a folder for each rollout, laid out as Harbor lays out its trials.

`<job>/config.json`, `<job>/result.json`, and for each trial `config.json`, `result.json` and `agent/trajectory.json`
(ATIF), with the files that the run kept as evidence (`agent/`, `verifier/`, `artifacts/`, `steps/`). Reference:
`harbor.models.trial`, `harbor.models.job` and `harbor.viewer.scanner` of its package, 0.26.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gym.capture.reader import Calls
from gym.report.atif import is_failed, trajectory
from gym.report.captured import Captured
from gym.report.exports import (
    attempts_of,
    captured,
    episode_of,
    file_name,
    line_of,
    new_folder,
    request_of,
    task_of,
    tasks_of,
)
from gym.rollouts import rundir

NAMESPACE = uuid.UUID("6f1d9c1e-5f0f-4d43-9f0c-0a2f4a1f7c55")
"""Ids follow from run and rollout, so that exporting again gives the same ones."""


@dataclass(frozen=True)
class Job:
    """What all trials of a run have in common."""

    name: str
    folder: Path
    agent: str
    model: str | None

    def id(self, name: str) -> str:
        """A UUID of something in the job."""
        return str(uuid.uuid5(NAMESPACE, f"{self.name}/{name}"))

    def config(self) -> dict[str, Any]:
        """`config.json` of the job."""
        agent = {"name": self.agent, "model_name": self.model}
        return {"job_name": self.name, "jobs_dir": str(self.folder.parent), "agents": [agent]}


def export_trials(run: Path, target: Path) -> list[dict[str, Any]]:
    """Writes a run as a job below `target`; returns a line for each trial.

    Raises:
        UserError: As `gym.report.exports.export`.
    """
    rows = list(attempts_of(run))
    name = "__".join(run.resolve().parts[-3:])
    job = Job(name, target / name, *_agent_and_model(run))
    tasks = tasks_of(run / rundir.TASKS)
    with Calls(run) as calls, new_folder(target):
        lines = [_write(job, run, row, tasks.get(task_of(row)), captured(calls, row)) for row in rows]
        _json(job.folder / "config.json", job.config())
        _json(job.folder / "result.json", _job_result(job, rows))
    return lines


def trial_result(job: Job, row: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """`result.json` of a trial; `task` are the benchmark's own fields of the task."""
    name = file_name(row)
    usage, details = row.get("usage") or {}, (row.get("usage") or {}).get("input_tokens_details") or {}
    started, ended = _times(row)
    told: dict[str, Any] = {
        "id": job.id(name),
        "task_name": row.get("task_name") or row.get("task_id"),
        "trial_name": name,
        "trial_uri": (job.folder / name).resolve().as_uri(),
        "task_id": {"path": _path(row, task)},
        "source": row.get("taskset"),
        "task_checksum": str(task.get("digest") or row.get("task_digest")).removeprefix("sha256:"),
        "config": _trial_config(job, row, task),
        "agent_info": {"name": job.agent, "version": "unknown", "model_info": _model(job)},
        "agent_result": {
            "n_input_tokens": usage.get("input_tokens"),
            "n_cache_tokens": details.get("cached_tokens"),
            "n_output_tokens": usage.get("output_tokens"),
            "cost_usd": usage.get("cost_usd"),
        },
        "started_at": started,
        "finished_at": ended,
    }
    if "reward" in row:
        told["verifier_result"] = {"rewards": row.get("rewards") or {"reward": row["reward"]}}
    else:
        told["exception_info"] = {
            "exception_type": str(row.get("kind")),
            "exception_message": str(row.get("message")),
            "exception_traceback": "",
            "occurred_at": ended,
        }
    if steps := row.get("step_results"):
        told["step_results"] = [
            {"step_name": step["name"], "verifier_result": {"rewards": step["rewards"]}} for step in steps
        ]
    return told


def _write(
    job: Job, run: Path, row: dict[str, Any], given: Mapping[str, Any] | None, calls: Captured
) -> dict[str, Any]:
    task = (given or {}).get("task_data") or {}
    name = file_name(row)
    folder = job.folder / name
    evidence = run / rundir.EVIDENCE / episode_of(row)
    if evidence.is_dir():
        shutil.copytree(evidence, folder, symlinks=True)
    _json(folder / "config.json", _trial_config(job, row, task))
    _json(folder / "result.json", trial_result(job, row, task))
    _json(folder / "agent" / "trajectory.json", trajectory(row, request_of(given), calls))
    return {"trial": name, **line_of(row)}


def _trial_config(job: Job, row: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    agent = {"name": job.agent, "model_name": job.model}
    path = {"path": _path(row, task), "source": row.get("taskset")}
    return {"task": path, "trial_name": file_name(row), "trials_dir": str(job.folder), "agent": agent}


def _job_result(job: Job, rows: list[dict[str, Any]]) -> dict[str, Any]:
    errors = sum(map(is_failed, rows))
    times = [time for row in rows for time in _times(row)]
    stats = {"n_completed_trials": len(rows), "n_errored_trials": errors}
    begun, ended = (min(times), max(times)) if times else (_iso(0), _iso(0))
    return {"id": job.id(""), "started_at": begun, "finished_at": ended, "n_total_trials": len(rows), "stats": stats}


def _agent_and_model(run: Path) -> tuple[str, str | None]:
    """Names of the agent's implementation and of the model, as the run's configuration has them."""
    import yaml

    config = yaml.safe_load((run / rundir.CONFIG).read_text(encoding="utf-8"))
    agents = [name for block in _blocks(config) for name in block.get("responses_api_agents") or {}]
    return (agents[0].removesuffix("_agent") if agents else "unknown"), config.get("policy_model_name")


def _blocks(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (block for block in config.values() if isinstance(block, dict) and "responses_api_agents" in block)


def _model(job: Job) -> dict[str, Any] | None:
    return {"name": job.model} if job.model else None


def _path(row: Mapping[str, Any], task: Mapping[str, Any]) -> str:
    return str(task.get("folder") or f"{row.get('taskset')}/{row.get('task_id')}")


def _times(row: Mapping[str, Any]) -> tuple[str, str]:
    started = float(row.get("started_at") or 0)
    return _iso(started), _iso(started + float((row.get("timings") or {}).get("total") or 0))


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _json(path: Path, data: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    path.write_bytes(raw.encode("utf-8", "backslashreplace"))
