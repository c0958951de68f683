"""Tools: plain typed methods of a resources server. From their signature come the schema and the check of arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, create_model

Tool = Callable[..., Awaitable[Any]]
ToolT = TypeVar("ToolT", bound=Tool)

RESERVED = frozenset({"verify", "seed_session", "close_session", "aggregate_metrics", "mcp", "tools"})
"""Paths of the server itself, which no tool may take."""

MODEL_CAN_FIX = frozenset({400, 404, 413, 422})
"""Statuses by which a tool refuses a call's content; every other one is a fault of the infrastructure."""


def tool(method: ToolT) -> ToolT:
    """Makes `async def name(self, session, **typed arguments)` a tool; its docstring is what the model reads.

    Arguments that do not fit go back to the model as an error; an exception of the tool fails the episode.
    """
    method.__dict__["is_tool"] = True
    return method


@cache
def tools_of(cls: type) -> dict[str, Tool]:
    """The tool functions of a class by name."""
    return {name: member for name, member in inspect.getmembers(cls, inspect.isfunction) if "is_tool" in vars(member)}


@cache
def tool_arguments(function: Tool) -> type[BaseModel]:
    """The argument model of a tool, from its type hints and defaults. Unknown arguments are refused."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {
        item.name: (hints[item.name], ... if item.default is item.empty else item.default)
        for item in _parameters(function)
    }
    return create_model(f"{function.__name__}_arguments", __config__=ConfigDict(extra="forbid"), **fields)


def tool_schema(function: Tool) -> dict[str, Any]:
    """A tool as a Responses function tool."""
    schema = tool_arguments(function).model_json_schema()
    schema.pop("title", None)
    for item in schema.get("properties", {}).values():
        item.pop("title", None)
    description = inspect.getdoc(function) or ""
    return {"type": "function", "name": function.__name__, "description": description, "parameters": schema}


def check_tools(cls: type, taken: Iterable[str]) -> None:
    """Refuses a class whose tools cannot be served.

    Args:
        cls: The class that is being defined.
        taken: Names that the base class uses itself.

    Raises:
        TypeError: All that is wrong with the first such tool.
    """
    not_free = RESERVED.union(taken)
    for name, function in tools_of(cls).items():
        wrong = ["the server itself uses this name; choose another"] if name in not_free else []
        if not inspect.iscoroutinefunction(function):
            wrong.append("it must be an `async def`")
        if len(inspect.signature(function).parameters) < 2:
            wrong.append("its first two parameters are `self` and `session`")
        wrong += [problem for item in _parameters(function) if (problem := _problem(item))]
        if wrong:
            raise TypeError(f"{cls.__name__}.{name} cannot be a tool: {'; '.join(wrong)}")


def _parameters(function: Tool) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())[2:]


def _problem(item: inspect.Parameter) -> str:
    if item.kind not in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY):
        return f"`{item}` is no single named argument"
    if item.name.startswith("_"):
        return f"`{item.name}` begins with an underscore"
    return "" if item.annotation is not item.empty else f"`{item.name}` needs a type"
