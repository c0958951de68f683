"""`gym list ...`: the options of the config groups, one of them in detail, and the settings of its implementation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gym.cli.console import print_json, print_table
from gym.cli.verbs import Arguments
from gym.composition import groups
from gym.composition.groups import Option
from gym.composition.overrides import unknown_option
from gym.composition.roots import shown
from gym.errors import EXIT_OK, Problem, UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from gym.composition.schema import Setting

GROUP_OF = {
    "agents": "agent",
    "benchmarks": "benchmark",
    "models": "model-provider",
    "environments": "environment",
    "sandboxes": "sandbox",
    "experiments": "experiment",
}
TYPE_OF = {
    "agent": "responses_api_agents",
    "benchmark": "resources_servers",
    "model-provider": "responses_api_models",
    "environment": "environment_servers",
}
"""Server type of the implementations behind a group's options."""
SHOWN = 48
"""Characters of a default that a table shows; `--json` has all of them."""
SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)[.!?])(?=\s+[^a-z\s]|\s*\Z)", re.DOTALL)


def run(arguments: Arguments) -> int:
    """Lists a kind, or shows one option of it."""
    group = GROUP_OF[arguments.verb.name.split()[1]]
    if arguments.name is None:
        if arguments.values["fields"]:
            raise UserError(Problem("--fields needs a name", f"`gym {arguments.verb.name} NAME --fields`"))
        return _all(group, as_json=arguments.json)
    if arguments.values["fields"]:
        return _fields(group, arguments.name, as_json=arguments.json)
    return _one(group, arguments.name, as_json=arguments.json)


def _all(group: str, *, as_json: bool) -> int:
    found = list(listed(group))
    rows = [{"name": item.name, "description": description(item), "path": shown(item.path)} for item in found]
    if as_json:
        print_json(rows)
    else:
        print_table(["name", "description", "path"], [list(row.values()) for row in rows])
        prefix = "+" if group == "experiment" else ""
        print(f"\nchoose one with {prefix}{group}=NAME")
    return EXIT_OK


def listed(group: str) -> Iterator[Option]:
    """The options of a group, and the profiles of each."""
    for name, item in groups.options(group).items():
        yield item
        for profile in groups.profiles(group, name):
            if (found := groups.option(group, profile)) is not None:
                yield found


def _one(group: str, name: str, *, as_json: bool) -> int:
    item = _option(group, name)
    readme = _readme(item)
    shown_as = {
        "name": item.name,
        "description": description(item),
        "choose with": f"{'+' if group == 'experiment' else ''}{group}={item.name}",
        "file": shown(item.path),
        "readme": shown(readme) if readme else None,
        "profiles": groups.profiles(group, name),
    }
    if as_json:
        print_json({key.replace(" ", "_"): value for key, value in shown_as.items()})
        return EXIT_OK
    for key, value in shown_as.items():
        if value:
            print(f"{key:12} {', '.join(value) if isinstance(value, list) else value}")
    return EXIT_OK


def _option(group: str, name: str) -> Option:
    found = groups.option(group, name)
    if found is None:
        raise UserError(unknown_option(group, name))
    return found


def description(item: Option) -> str:
    """The first sentence of the folder's README, or of the file's comment; empty where there is none."""
    readme = _readme(item)
    text = _paragraph(readme.read_text(encoding="utf-8", errors="replace")) if readme else ""
    text = text or _comment(item.path.read_text(encoding="utf-8", errors="replace"))
    sentence = SENTENCE.match(text)
    return " ".join((sentence.group(1) if sentence else text).split())


def _readme(item: Option) -> Path | None:
    """The README of the folder that stands for an option; an option that is one file of many has none."""
    if item.template is not None and item.path.stem == item.path.parent.parent.name:
        folder = item.path.parent.parent
    elif item.path.name in ("run.yaml", "benchmark.yaml") and item.path.parent.name == item.name:
        folder = item.path.parent
    else:
        return None
    return folder / "README.md" if (folder / "README.md").is_file() else None


def _paragraph(text: str) -> str:
    """The first paragraph of a Markdown text that is no heading, picture, table, list, comment or code."""
    blocks = (block.strip() for block in re.split(r"\n\s*\n", text))
    return next((block for block in blocks if block and block[0] not in "#![|<-*`>"), "")


def _comment(text: str) -> str:
    """The first block of comment lines of a YAML file."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            if lines:
                break
            continue
        content = line.lstrip("#").strip()
        if not content and lines:
            break
        if content and not content.startswith("@package"):
            lines.append(content)
    return " ".join(lines)


def _fields(group: str, name: str, *, as_json: bool) -> int:
    from gym.composition.schema import fields

    models = _models(group, name)
    if as_json:
        print_json({implementation: list(map(asdict, fields(model))) for implementation, model in models.items()})
        return EXIT_OK
    for index, (implementation, model) in enumerate(models.items()):
        print(f"{'' if index == 0 else chr(10)}{implementation}")
        rows = [[item.name, item.type, _default(item), _marks(item), item.description] for item in fields(model)]
        print_table(["setting", "type", "default", "marks", "description"], rows)
    return EXIT_OK


def _default(item: Setting) -> str:
    text = "required" if item.required else json.dumps(item.default, ensure_ascii=False)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _marks(item: Setting) -> str:
    marks = ["operational"] * item.operational + ["secret"] * item.secret
    return ", ".join(marks) or "-"


def _models(group: str, name: str) -> dict[str, type[BaseModel]]:
    """The settings classes behind an option, by implementation. Also takes the name of an implementation.

    Raises:
        UserError: There is none, or its class cannot be imported.
    """
    from gym.composition.compose import compose
    from gym.planning.classes import component_class, server_class
    from gym.planning.instances import TARGET, sort

    if group == "experiment":
        fix = f"`gym env resolve +experiment={name}` prints what it is made of"
        raise UserError(Problem("an experiment has no settings of its own", fix, "command line"))
    item = groups.option(group, name)
    arguments, files = ([f"{group}={name}"], None) if item else ([], [_template(group, name)])
    composed = compose(arguments, files)
    if composed.problems:
        raise UserError(composed.problems)
    blocks = sort(composed.values)
    if group == "sandbox":
        found = {name: component_class(block[TARGET]) for name, block in blocks.components.items()}
    else:
        of_type = [block for block in blocks.instances.values() if block.type == TYPE_OF[group]]
        found = {block.implementation: server_class(block, block.settings.get(TARGET)) for block in of_type}
    if problems := [kind for kind in found.values() if isinstance(kind, Problem)]:
        raise UserError(problems)
    return {key: kind.config_type for key, kind in found.items() if not isinstance(kind, Problem)}


def _template(group: str, name: str) -> str:
    """The config file of an implementation, `<server type>/NAME/configs/NAME.yaml`."""
    from gym.composition.roots import lookup

    path = f"{TYPE_OF.get(group, group)}/{name}/configs/{name}.yaml"
    if lookup(path) is None:
        raise UserError(unknown_option(group, name))
    return path
