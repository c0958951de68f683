"""`_target_` of a block becomes a class, of the four server bases or the sandbox providers and of nothing else."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from gym.errors import Problem, did_you_mean
from gym.launch import requirements
from gym.planning.instances import Block
from gym.servers.base import Server


def _load(target: str) -> Any:
    """The object that a dotted path names, or the problem with it."""
    module_name, _, name = str(target).rpartition(".")
    if not module_name:
        return Problem(f"`{target}` names no class", "write package.module.Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            return Problem(f"no module `{error.name}` (for `{target}`)", "check the folder's name")
        return Problem(f"{module_name} needs the package `{error.name}`", _how_to_have(module_name, error.name))
    except Exception as error:
        # A broken plugin is the user's to fix, whatever it raised; it must not hurt the rest.
        return Problem(f"{module_name} cannot be imported: {type(error).__name__}: {error}")
    if not hasattr(module, name):
        return Problem(f"{module_name} has no class `{name}`", did_you_mean(name, vars(module)))
    return getattr(module, name)


def _how_to_have(module_name: str, package: str | None) -> str:
    """Where a requirements file is beside the module, the package may also be in an environment of the server's own."""
    spec = importlib.util.find_spec(module_name)
    if spec is None or spec.origin is None or not Path(spec.origin).with_name(requirements.FILE).is_file():
        return f"pip install {package}"
    return f"import it where it is used, so that the server gets an environment of its own, or pip install {package}"


def base_of(server_type: str) -> type[Server[Any]]:
    """The base class of a server type; imported when asked for."""
    match server_type:
        case "responses_api_models":
            from gym.servers.model import ModelServer

            return ModelServer
        case "resources_servers":
            from gym.servers.resources import ResourcesServer

            return ResourcesServer
        case "responses_api_agents":
            from gym.servers.agent import AgentServer

            return AgentServer
        case _:
            from gym.servers.environment import EnvironmentServer

            return EnvironmentServer


def server_class(block: Block, target: Any) -> type[Server[Any]] | Problem:
    """The class of an instance, or what is wrong with it."""
    if not target:
        return Problem(
            f"no `_target_`: {block.implementation} has no class yet",
            "inherit from the implementation's template, or name the class",
        )
    found = _load(str(target))
    if isinstance(found, Problem):
        return found
    base = base_of(block.type)
    if not (isinstance(found, type) and issubclass(found, base)):
        return Problem(f"`{target}` is no {base.__name__}", f"a block of {block.type} names a class of that base")
    return found


def component_class(target: Any) -> type[Any] | Problem:
    """The class of a sandbox provider, or what is wrong with it."""
    from gym.sandbox.interface import SandboxProvider

    found = _load(str(target))
    if isinstance(found, Problem):
        return found
    if not (isinstance(found, type) and issubclass(found, SandboxProvider) and hasattr(found, "config_type")):
        return Problem(f"`{target}` is no sandbox provider", "see docs/sandboxes.md")
    return found
