"""`gym env resolve`: the resolved configuration, or with `--explain` who set a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from gym.cli.console import print_json
from gym.cli.explain import explain
from gym.cli.verbs import Arguments
from gym.composition.compose import compose
from gym.errors import EXIT_OK
from gym.planning.instances import TARGET
from gym.planning.resolve import Resolved, resolve


def run(arguments: Arguments) -> int:
    """Prints the configuration. An explanation is printed also where the configuration has problems elsewhere."""
    resolved = resolve(compose(arguments.overrides(), arguments.files))
    key = arguments.values["explain"]
    if key is not None:
        explained = explain(resolved, tuple(key.split(".")))
        if arguments.json:
            print_json([item.as_dict() for item in explained])
        else:
            print("\n\n".join(map(str, explained)))
        return EXIT_OK
    resolved.raise_problems()
    shown = resolved.redactor.mapping(complete(resolved))
    choices = {group: name for group, name in resolved.composed.choices.items() if name != "None"}
    if arguments.json:
        print_json({"configuration": shown, "choices": choices, "not_started": resolved.idle})
        return EXIT_OK
    print(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120), end="")
    if choices:
        print("# chosen: " + ", ".join(f"{group}={name}" for group, name in choices.items()))
    print(f"# templates, not started: {', '.join(resolved.idle) or 'none'}")
    return EXIT_OK


def complete(resolved: Resolved) -> dict[str, Any]:
    """The used part of a configuration, with the classes of the instances, so that it composes to itself."""
    return {name: _with_class(resolved, name, value) for name, value in resolved.values.items()}


def _with_class(resolved: Resolved, name: str, value: Any) -> Any:
    instance = resolved.instances.get(name)
    if instance is None:
        return value
    raw: Any = resolved.raw[name]
    for part in instance.key[1:]:
        raw = raw[part]
    settings: Mapping[str, Any] = value[instance.type][instance.implementation]
    return {instance.type: {instance.implementation: {TARGET: raw[TARGET], **settings}}}
