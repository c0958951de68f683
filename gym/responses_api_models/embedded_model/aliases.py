"""Plays a script's tool calls with the tools that a harness really offers.

Harnesses name the same tool differently. A call of a tool that is offered under its own name is played as it is. Else:

- a call of one of `SHELLS`, such as `shell`, goes to the offered shell, whatever it is called. Its command goes into
  the argument that this tool has for it (`COMMANDS`); where that is a list, as `["bash", "-lc", command]`.
- any other call goes to the one offered tool whose name ends with `_`, `-`, `.` or `/` and the name of the call, as
  harnesses put the server's name before that of an MCP tool; or whose name it is within a namespace.

What fits nothing is played as it stands in the script.

A harness that has nothing but a shell (mini-SWE-agent) tells in its prompt how other tools are called from there, and
with which command it ends; such a command is played for a call of another tool, and after words without a call.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gym.apis.responses import Item, ResponsesRequest, function_call, texts_of

SHELLS = (
    "shell",
    "bash",
    "Bash",
    "exec_command",
    "terminal",
    "shell_command",
    "run_shell_command",
    "run_command",
    "execute_command",
    "run_terminal_cmd",
    "exec",
)
"""Names of tools that run a shell command; the first that is offered is taken."""

COMMANDS = ("command", "cmd", "script", "input", "code")
"""Names of the argument that has the command; the first that the tool has is taken."""

EXPLANATIONS = ("description", "explanation", "justification")
"""Arguments that some shells demand beside the command: it is repeated there."""

SEPARATORS = ("_", "-", ".", "/")

FINISH = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What the last command of a run of mini-SWE-agent prints."""

TOOL_COMMAND = re.compile(r"(\S+ \S+/tool) NAME 'ARGUMENTS'")
"""How our adapter tells it to call a tool of the task."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool of a request. `properties` are those of its arguments."""

    name: str
    namespace: str | None
    properties: Mapping[str, Any]
    required: tuple[str, ...]


def offered(request: ResponsesRequest) -> list[Offered]:
    """The functions that a request offers, those in namespaces too."""
    items = [] if isinstance(request.input, str) else request.input
    brought = [tool for item in items if item.get("type") == "additional_tools" for tool in item.get("tools") or []]
    return list(_functions([*request.tools, *brought], None))


def _functions(tools: list[dict[str, Any]], namespace: str | None) -> Iterator[Offered]:
    for tool in tools:
        if tool.get("type") == "namespace":
            yield from _functions(tool.get("tools") or [], str(tool.get("name")))
        elif tool.get("name"):
            schema = tool.get("parameters") or {}
            yield Offered(
                str(tool["name"]), namespace, schema.get("properties") or {}, tuple(schema.get("required") or ())
            )


def played(items: list[Item], request: ResponsesRequest) -> list[Item]:
    """A turn as the harness of a request can play it."""
    tools = offered(request)
    if len(tools) == 1 and (shell := _shell(tools)) is not None:
        heard = [item for item in request.items() if item.get("role") == "user"]
        told = "\n".join(text for item in heard for text in texts_of(item))
        items = _by_commands(items, shell, told) if FINISH in told else items
    return [aliased(item, tools) for item in items]


def _by_commands(items: list[Item], shell: Offered, told: str) -> list[Item]:
    items = [_as_command(item, shell, told) for item in items]
    if any(item.get("type") == "function_call" for item in items):
        return items
    return [*items, function_call(shell.name, {"command": f"echo {FINISH}"}, "call_finish")]


def _as_command(item: Item, shell: Offered, told: str) -> Item:
    """A call of a tool that the prompt tells of, as the command that calls it."""
    command = TOOL_COMMAND.search(told)
    if item.get("type") != "function_call" or item["name"] in SHELLS or command is None:
        return item
    listed = re.search(rf"\bmcp__\w+__{re.escape(item['name'])}\b", told)
    if listed is None:
        return item
    line = f"{command[1]} {listed[0]} {shlex.quote(item['arguments'])}"
    return {**item, "name": shell.name, "arguments": json.dumps({"command": line})}


def aliased(item: Item, tools: list[Offered]) -> Item:
    """The item as this harness can play it."""
    if item.get("type") != "function_call":
        return item
    name = item["name"]
    own = next((tool for tool in tools if tool.name == name and tool.namespace is None), None)
    if name in SHELLS and (shell := own or _shell(tools)):
        return {**item, **_named(shell), "arguments": _shell_arguments(item["arguments"], shell)}
    if own is None and len(found := [tool for tool in tools if _is_suffix(name, tool)]) == 1:
        return {**item, **_named(found[0])}
    return item


def _named(tool: Offered) -> Item:
    return {"name": tool.name} | ({} if tool.namespace is None else {"namespace": tool.namespace})


def _shell(tools: list[Offered]) -> Offered | None:
    by_name = {tool.name: tool for tool in tools if tool.namespace is None}
    return next((by_name[name] for name in SHELLS if name in by_name), None)


def _is_suffix(name: str, tool: Offered) -> bool:
    if tool.namespace is not None:
        return tool.name == name
    return tool.name.endswith(tuple(separator + name for separator in SEPARATORS))


def _shell_arguments(raw: str, shell: Offered) -> str:
    """The arguments under the shell's own names. Those of another shape, or no JSON at all, stay as they are."""
    try:
        given = json.loads(raw)
    except ValueError:
        return raw
    mine = next((name for name in COMMANDS if name in given), None) if isinstance(given, dict) else None
    theirs = next((name for name in COMMANDS if name in shell.properties), None)
    if mine is None or theirs is None or not isinstance(given[mine], str):
        return raw
    command = given.pop(mine)
    as_list = (shell.properties[theirs] or {}).get("type") == "array"
    explained = {name: command for name in EXPLANATIONS if name in shell.required and name not in given}
    return json.dumps({theirs: ["bash", "-lc", command] if as_list else command, **given, **explained})
