"""`gym eval plan`: what a run would do, without starting or writing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gym.cli import task_folders
from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.composition.compose import compose, experiment_of
from gym.composition.roots import find, shown
from gym.errors import EXIT_OK
from gym.planning import budget, capabilities
from gym.planning.datasets import PlannedDataset, count_tasks
from gym.planning.plan import Plan, plan
from gym.planning.resolve import Instance, resolve
from gym.servers.contract import ServerRef
from gym.servers.environment import EnvironmentServerConfig
from gym.servers.model import ModelServer


def run(arguments: Arguments) -> int:
    """Prints the plan."""
    arguments = task_folders.opened(arguments)
    described = describe(plan(resolve(compose(arguments.overrides(), arguments.files))))
    if arguments.json:
        print_json(described)
    else:
        _print(described)
    return EXIT_OK


def describe(made: Plan) -> dict[str, Any]:
    """A plan as JSON data."""
    settings = made.resolved.settings
    datasets = [_dataset(made, item) for item in made.datasets]
    return {
        "run": experiment_of(made.resolved.composed),
        "split": settings.split,
        "input": settings.input,
        "tasks": count_tasks(made),
        "model_name": settings.policy_model_name,
        "concurrency": settings.concurrency,
        "output": settings.output,
        "instances": [_instance(made, item) for item in made.instances.values()],
        "routes": [_route(made, taskset, name) for taskset, name in made.routes.items()],
        "datasets": datasets,
        "sandboxes": {name: provider.describe() for name, provider in made.providers.items()},
        "budgets": [_budget(made, item) for item in made.of_type("environment_servers")],
        "notes": [made.resolved.redactor.text(note) for note in made.notes],
    }


def _instance(made: Plan, item: Instance) -> dict[str, Any]:
    template = made.resolved.composed.template_of.get(item.name)
    described: dict[str, Any] = {"name": item.name, "type": item.type, "implementation": item.implementation}
    described["template"] = template
    if issubclass(item.server_class, ModelServer):
        described["is_script"] = item.server_class.scripted
        described["capabilities"] = capabilities.declared(item).declared()
    return described


def _references(made: Plan, name: str | None) -> dict[str, str]:
    """Instances that an instance refers to, by their server type."""
    item = made.instances.get(name or "")
    return {ref.type: ref.name for _, ref in item.config if isinstance(ref, ServerRef)} if item else {}


def _route(made: Plan, taskset: str, environment: str) -> dict[str, str | None]:
    bound = _references(made, environment)
    agent = bound.get("responses_api_agents")
    model = bound.get("responses_api_models") or _references(made, agent).get("responses_api_models")
    resources = bound.get("resources_servers")
    return {"taskset": taskset, "environment": environment, "resources": resources, "agent": agent, "model": model}


def _dataset(made: Plan, item: PlannedDataset) -> dict[str, Any]:
    dataset = item.dataset
    return {
        "name": dataset.name,
        "declared_by": item.instance,
        "taskset": item.taskset,
        "rows": 0 if made.resolved.settings.input else _rows(dataset.jsonl_fpath),
        "attempts": made.resolved.settings.num_repeats or dataset.num_repeats,
        "file": dataset.jsonl_fpath,
    }


def _rows(path: str) -> int:
    with find(path).open("rb") as file:
        return sum(1 for line in file if line.strip())


def _budget(made: Plan, item: Instance) -> dict[str, Any]:
    """Bounds of an episode in seconds, in the order in which they apply; None: no bound."""
    config = item.config
    assert isinstance(config, EnvironmentServerConfig)
    resources = made.instances.get(_references(made, item.name).get("resources_servers", ""))
    sandbox = getattr(resources.config if resources else None, "sandbox_config", None)
    return {
        "environment": item.name,
        "parts": [str(bound) for bound in budget.bounds(made, item)],
        "episodes_at_once": config.max_concurrent_episodes,
        "queue_seconds": config.queue_timeout_seconds,
        "episode_seconds": config.default_episode_timeout_seconds,
        "cleanup_seconds": config.cleanup_timeout_seconds,
        "sandbox_ttl_seconds": getattr(sandbox, "ttl_seconds", None),
    }


def _print(described: Mapping[str, Any]) -> None:
    for name, header, rows in _tables(described):
        print(name)
        print_table(header, rows, right={"rows", "attempts"})
        print()
    for bounds in described["budgets"]:
        print(f"budget of {bounds['environment']}: {_timeline(bounds)}")
    scripts = [item["name"] for item in described["instances"] if item.get("is_script")]
    of_models = [f"{name} plays a script; it is no language model" for name in scripts]
    of_models += [_declared(item) for item in described["instances"] if item.get("capabilities")]
    for note in (*described["notes"], *of_models):
        print(f"note: {note}")
    many = f"{described['tasks']} {'task' if described['tasks'] == 1 else 'tasks'}"
    source = f"of {shown(find(described['input']))}" if described["input"] else f"of the split {described['split']}"
    model = f", model {described['model_name']}" if described["model_name"] else ""
    print(f"would run {many} {source}, {described['concurrency']} episodes at once{model}")


def _declared(item: Mapping[str, Any]) -> str:
    can = [name if can else f"no {name}" for name, can in item["capabilities"].items()]
    return f"{item['name']} is declared to have {', '.join(can)}"


def _tables(described: Mapping[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    for name in ("instances", "routes", "datasets"):
        items = described[name]
        columns = [key for key in (items[0] if items else {}) if key not in ("is_script", "capabilities")]
        if items:
            rows = [["-" if item[key] is None else str(item[key]) for key in columns] for item in items]
            yield name, [column.replace("_", " ") for column in columns], rows


def _timeline(bounds: Mapping[str, Any]) -> str:
    queue, episode, ttl = (bounds[f"{name}_seconds"] for name in ("queue", "episode", "sandbox_ttl"))
    inner = f" (in it: {', '.join(bounds['parts'])})" if bounds["parts"] else ""
    parts = [
        f"queue {_bound(queue)}",
        f"episode {_bound(episode)}{inner}",
        f"each cleanup {_bound(bounds['cleanup_seconds'])}",
    ]
    text = " -> ".join(parts)
    return f"{text}; sandbox ends after {_bound(ttl)}" if ttl is not None else text


def _bound(seconds: float | None) -> str:
    return "no bound" if seconds is None else f"{seconds:g} s"
