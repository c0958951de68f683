"""Where each value of a configuration comes from: file and line, in the order of merging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gym.composition.files import ConfigFile, KeyPath

MISSING = object()


@dataclass(frozen=True)
class Layer:
    """One source of settings.

    Attributes:
        data: What it contributes, under `package`.
        file: The file, or None for the command line and for what the framework adds.
        label: What stands in a message where there is no file.
    """

    data: Mapping[str, Any]
    file: ConfigFile | None = None
    package: KeyPath = ()
    label: str = "command line"

    def value(self, key: KeyPath) -> Any:
        """The value that this layer sets at a key, or MISSING."""
        if key[: len(self.package)] != self.package:
            return MISSING
        value: Any = self.data
        for part in key[len(self.package) :]:
            if isinstance(value, Mapping) and part in value:
                value = value[part]
            elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return MISSING
        return value

    def where(self, key: KeyPath) -> str:
        """`file:line` of a key in this layer."""
        return self.file.where(key[len(self.package) :]) if self.file else self.label


@dataclass(frozen=True)
class Setting:
    """One layer's say on a key."""

    where: str
    value: Any
    order: tuple[int, int]
    note: str = ""


@dataclass
class Origins:
    """The layers of a configuration in the order of merging, and who inherits from whom.

    Attributes:
        template_of: Template of each inheriting block, as dotted paths.
    """

    layers: Sequence[Layer]
    template_of: Mapping[str, str] = field(default_factory=dict)

    def settings(self, key: KeyPath) -> list[Setting]:
        """Who set a key, in order: the last one wins. What a template set comes before what its heirs set."""
        found = list(self._inherited(key))
        for index, layer in enumerate(self.layers):
            value = layer.value(key)
            if value is not MISSING:
                where = layer.where(key)
                line = int(where.rpartition(":")[2]) if where.rpartition(":")[2].isdigit() else 0
                found.append(Setting(where, value, (index, line)))
        return found

    def _inherited(self, key: KeyPath) -> Iterator[Setting]:
        for length in range(len(key), 0, -1):
            template = self.template_of.get(".".join(key[:length]))
            if template is not None:
                for item in self.settings((*template.split("."), *key[length:])):
                    yield Setting(item.where, item.value, item.order, item.note or f"inherited from {template}")

    def last(self, key: KeyPath) -> Setting | None:
        """The setting that won, or that of the closest block around the key."""
        while key:
            if found := self.settings(key):
                return found[-1]
            key = key[:-1]
        return None

    def where(self, key: KeyPath) -> str:
        """`file:line` of the setting that won."""
        setting = self.last(key)
        return setting.where if setting else ""

    def order(self, key: KeyPath) -> tuple[int, int]:
        """Sort key of a problem at this key: order of files, then lines."""
        setting = self.last(key)
        return setting.order if setting else (999_999, 0)
