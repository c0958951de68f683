"""The configuration reference: every setting of the shipped schemas, as Markdown.

`python -m gym.planning.reference` prints it; it is kept as docs/configuration.md, and a test tells when it is stale.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gym.composition import schema
from gym.composition.files import load
from gym.composition.roots import PACKAGE, installed_root, make_importable
from gym.composition.schema import Setting
from gym.errors import Problem, UserError
from gym.planning import instances
from gym.planning.classes import base_of, component_class, server_class
from gym.planning.instances import TARGET
from gym.planning.settings import RunSettings
from gym.sandbox.config import SandboxProviderConfig
from gym.servers.base import Server, ServerConfig
from gym.servers.contract import SERVER_TYPES, ServerType
from gym.tasks.datasets import DatasetConfig

HEAD = """\
# Configuration reference

<!-- Written by `python -m gym.planning.reference > docs/configuration.md`. Change the schemas, not this file. -->

Every setting of what ships, from the same schemas that check a configuration. How files and overrides come together:
[composition.md](composition.md).

- Settings of a run are top-level keys: `limit=2`. Settings of an implementation stand in an instance's block:
  `agent.responses_api_agents.simple_agent.max_steps=30`.
- A default of *required* means that the setting has none. What a template in a `configs/` folder sets comes before the
  defaults shown here.
- The last column says whether a run that is continued in the same directory may change the setting (*may change*), or
  whether the setting is part of what the run measures (*fixed*).
- *Secret* values are shown as `***` wherever a configuration is printed or saved.
"""

TYPES: dict[ServerType, tuple[str, str]] = {
    "responses_api_models": ("Model servers", "Who acts."),
    "resources_servers": ("Resources servers", "Tasks, their tools and state, and the verifier."),
    "responses_api_agents": ("Agents", "How a model is driven."),
    "environment_servers": ("Environment servers", "What an episode is."),
}

DATASETS = "An entry of the `datasets` list of a resources server or an agent.\n"
SANDBOXES = "Where commands run. A provider is a top-level block, `sandbox` unless named otherwise.\n"


def render() -> str:
    """The whole reference.

    Raises:
        UserError: A shipped template names a class that cannot be loaded.
    """
    make_importable()
    parts = [HEAD, "## Run settings\n", table(RunSettings), "## All servers\n", table(ServerConfig)]
    parts += [
        "## Datasets\n",
        "An entry of the `datasets` list of a resources server or an agent.\n",
        table(DatasetConfig),
    ]
    for server_type in SERVER_TYPES:
        parts += _servers(server_type)
    parts += _sandboxes()
    return "\n".join(parts)


def _servers(server_type: ServerType) -> Iterator[str]:
    title, about = TYPES[server_type]
    yield f"## {title}\n\n{about} Server type `{server_type}`.\n"
    base = base_of(server_type).config_type
    if common := table(base, beyond=ServerConfig):
        yield f"Settings of all {title.lower()}:\n"
        yield common
    for implementation, server in sorted(implementations(server_type).items()):
        yield f"### {implementation}\n\n{_first_paragraph(server)}\n"
        yield table(server.config_type, beyond=base) or "No settings of its own.\n"


def _sandboxes() -> Iterator[str]:
    yield f"## Sandbox providers\n\n{SANDBOXES}"
    yield "Settings of all sandbox providers:\n"
    yield table(SandboxProviderConfig)
    for path in sorted((installed_root() / "conf" / "sandbox").glob("*.yaml")):
        for block in instances.sort(load(path).data).components.values():
            provider = _loaded(component_class(block[TARGET]), path)
            yield f"### {path.stem}\n\n{_first_paragraph(provider)}\n"
            yield table(provider.config_type, beyond=SandboxProviderConfig) or "No settings of its own.\n"


def implementations(server_type: ServerType) -> dict[str, type[Server[Any]]]:
    """Class of each implementation that ships a template."""
    found: dict[str, type[Server[Any]]] = {}
    for base in dict.fromkeys((installed_root(), PACKAGE)):
        for path in sorted((base / server_type).glob("*/configs/*.yaml")):
            for block in instances.sort(load(path).data).instances.values():
                if block.type == server_type and TARGET in block.settings:
                    found.setdefault(block.implementation, _loaded(server_class(block, block.settings[TARGET]), path))
    return found


def _loaded(found: Any, path: Path) -> Any:
    if isinstance(found, Problem):
        raise UserError(Problem(found.what, found.fix, str(path)))
    return found


def _first_paragraph(found: type[Any]) -> str:
    return " ".join((inspect.getdoc(found) or "").partition("\n\n")[0].split())


def table(model: type[BaseModel], *, beyond: type[BaseModel] | None = None) -> str:
    """The settings of a class as a Markdown table; empty where there are none.

    What a reference or a dataset holds is left out: it is told once, elsewhere.

    Args:
        beyond: A base class; only what `model` adds to it, or has otherwise, is shown.
    """
    settings = schema.fields(model)
    inherited = schema.fields(beyond) if beyond else []
    names = {setting.name for setting in settings}
    references = {name for name in names if f"{name}.type" in names and f"{name}.name" in names}
    rows = [
        _row(setting, is_reference=setting.name in references)
        for setting in settings
        if setting not in inherited and not _is_told_elsewhere(setting.name, references)
    ]
    head = ["| setting | wants | default | meaning | when continued |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n" if rows else ""


def _is_told_elsewhere(name: str, references: Set[str]) -> bool:
    parent = name.rpartition(".")[0]
    return parent in references or parent.endswith("datasets[]")


def _row(setting: Setting, *, is_reference: bool) -> str:
    wants = setting.type.replace("a mapping", "a reference `{type, name}`") if is_reference else setting.type
    about = f"{setting.description} Secret." if setting.secret else setting.description
    change = "may change" if setting.operational else "fixed"
    cells = [f"`{setting.name}`", wants, _default(setting), about.replace("<", "\\<"), change]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(setting: Setting) -> str:
    if setting.required:
        return "*required*"
    if isinstance(setting.default, dict) and setting.default:
        return "as below"
    return f"`{json.dumps(setting.default, ensure_ascii=False)}`"


if __name__ == "__main__":
    sys.stdout.write(render())
