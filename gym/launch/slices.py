"""What a server process is told: its own slice of the configuration, and of the others nothing but their addresses.

It goes through a pipe, never through the command line or the environment. Settings travel as JSON data with the secrets
that are in them, and become the same objects on the other side.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr
from pydantic_core import to_jsonable_python

from gym.composition.credentials import is_secret_name
from gym.errors import Problem, UserError
from gym.sandbox.spec import Common, Mount
from gym.servers.contract import ServerType

INSTALLED = ("site-packages", "dist-packages")


class Part(BaseModel):
    """A class and its settings.

    Attributes:
        target: `module:Class`.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    target: str
    settings: dict[str, Any] = Field(repr=False)

    @classmethod
    def of(cls, made_by: type[Any], config: BaseModel, name: str) -> Part:
        """A part as data.

        Raises:
            UserError: The settings would be others on the other side, or the class cannot be found there.
        """
        part = cls(target=f"{made_by.__module__}:{made_by.__qualname__}", settings=settings_of(config))
        if "<locals>" in part.target or made_by.__module__ == "__main__":
            raise UserError(Problem(f"{part.target} cannot be imported by another process", "move it into a module"))
        if type(config).model_validate(part.settings) != config:
            what = f"the settings of {name} are not the same after a way through JSON"
            raise UserError(Problem(what, "use hosting=in_process for it, or settings that JSON can hold"))
        return part

    def load(self) -> tuple[Any, Any]:
        """The class, and its settings as an object of its `config_type`."""
        module, _, path = self.target.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found, found.config_type.model_validate(self.settings)


class CommonPart(BaseModel):
    """What all sandboxes have, as data; mounts are pairs of source and target."""

    model_config = ConfigDict(extra="forbid")

    labels: dict[str, str] = {}
    mounts: list[tuple[str, str]] = []

    @classmethod
    def of(cls, common: Common) -> CommonPart:
        """The same as data."""
        mounts = [(str(mount.source), mount.target) for mount in common.mounts]
        return cls(labels=dict(common.labels), mounts=mounts)

    def load(self) -> Common:
        """The same as it was."""
        return Common(self.labels, tuple(Mount(Path(source), target) for source, target in self.mounts))


class Slice(BaseModel):
    """All that one server process is told at its start.

    Attributes:
        sandboxes: The sandbox provider blocks that the instance may use, by name.
        common: What all their sandboxes have.
        host: Address that others are told.
        urls: Base URLs of all other instances.
        token: The run's token.
        issuer: Names the process in the session keys that it issues.
        revoked: Sessions and issuers whose keys are closed, and when these would have expired (Unix time).
        records: Folder for the record of model calls; None: there is none.
        secrets: What has to be masked in it; told to model servers alone.
        path: Where to look for modules, after the process's own places.
        environment: Variables that the server gets beside those that all processes have.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str
    type: ServerType
    server: Part
    sandboxes: dict[str, Part]
    common: CommonPart = CommonPart()
    host: str
    urls: dict[str, str]
    token: str = Field(repr=False)
    issuer: str = ""
    revoked: dict[str, float]
    records: str | None = None
    secrets: list[str] = Field(default_factory=list, repr=False)
    path: list[str]
    environment: dict[str, str] = Field(repr=False)


def settings_of(config: BaseModel) -> dict[str, Any]:
    """What was set in a settings object, under the names that its class reads, as JSON data."""
    fields = type(config).model_fields
    named = {name: _spelling(name, fields.get(name)) for name in config.model_fields_set}
    return {spelling: _plain(getattr(config, name)) for name, spelling in named.items()}


def _spelling(name: str, field: Any) -> str:
    alias = getattr(field, "validation_alias", None) or getattr(field, "alias", None)
    return alias if isinstance(alias, str) else name


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return settings_of(value)
        case SecretStr() | SecretBytes():
            return _plain(value.get_secret_value())
        case Mapping():
            return {str(_plain(key)): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            return to_jsonable_python(value)


def common_environment() -> dict[str, str]:
    """The variables that every server process gets: those that are not named like secrets."""
    return {name: value for name, value in os.environ.items() if not is_secret_name(name)}


def own_environment(parts: Iterable[Part]) -> dict[str, str]:
    """The secret variables that a server gets: those that its own settings name, as `env_from_host: [TOKEN]` does."""
    named = set(re.findall(r"\w+", str([part.settings for part in parts])))
    return {name: value for name, value in os.environ.items() if name in named and is_secret_name(name)}


def module_places() -> list[str]:
    """Where this process finds modules beside the installed ones: project folders, a checkout."""
    library = Path(sysconfig.get_path("stdlib"))
    places = [Path(place).resolve() for place in sys.path]
    return [
        str(place)
        for place in places
        if place.is_dir() and not place.is_relative_to(library) and place.name not in INSTALLED
    ]
