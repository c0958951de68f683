"""One YAML file: its data, its header, and the line of every key.

The data are what OmegaConf's own loader makes of the file, so values mean what Hydra users expect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf._utils import get_yaml_loader

from gym.composition.roots import shown
from gym.errors import Problem, UserError

KeyPath = tuple[str, ...]
HEADER = re.compile(r"^\s*#\s*@package\s+(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class ConfigFile:
    """A parsed file.

    Attributes:
        data: The mapping that the file holds. Not to be changed.
        lines: 1-based line of each key; list items have their index as last part.
        package: What the `# @package` header says, or None.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[KeyPath, int]
    package: str | None

    def where(self, key: KeyPath) -> str:
        """`file:line` of a key, or of the closest part of it that the file has."""
        while key and key not in self.lines:
            key = key[:-1]
        return f"{shown(self.path)}:{self.lines.get(key, 1)}"


def load(path: Path) -> ConfigFile:
    """Reads and parses a file; parsed files are kept as long as they do not change.

    Raises:
        UserError: The file cannot be read, is no YAML, or holds something else than a mapping.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(Problem(f"cannot read {path}: {error.strerror}")) from error
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _load(path: Path, _changed: int, _size: int) -> ConfigFile:
    try:
        text = path.read_text(encoding="utf-8")
        loader = get_yaml_loader()(text)
        node = loader.get_single_node()
        data = loader.construct_document(node) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        place = f"{shown(path)}:{line}"
        column = f" (column {mark.column + 1})" if mark else ""
        raise UserError(Problem(f"not valid YAML: {error.problem}{column}", where=place)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(Problem(f"not valid YAML: {error}", where=shown(path))) from error
    except OSError as error:
        raise UserError(Problem(f"cannot read {path}: {error.strerror}")) from error
    if not isinstance(data, dict):
        raise UserError(
            Problem(f"holds a {type(data).__name__}", "a configuration file is a mapping", f"{shown(path)}:1")
        )
    lines: dict[KeyPath, int] = {}
    _positions(node, (), lines)
    header = HEADER.search(text)
    return ConfigFile(path, data, lines, header.group(1) if header else None)


def _positions(node: yaml.Node | None, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            path = (*prefix, str(key.value))
            lines[path] = key.start_mark.line + 1
            _positions(value, path, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            path = (*prefix, str(index))
            lines[path] = value.start_mark.line + 1
            _positions(value, path, lines)
