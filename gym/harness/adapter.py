"""What an adapter says about its harness: how to start it, and what was found in what it left.

Everything else (sandbox, runtime, deadline, logs, judging the outcome, closing) is `gym.harness.agent`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from gym.apis.responses import Item, Usage


@dataclass(frozen=True)
class ToolServer:
    """An MCP server as the harness reaches it: over streamable HTTP, or by starting it.

    Attributes:
        url: Empty for one that is a command.
        command: Program and arguments in the sandbox; only for harnesses with `stdio_tools`.
        required: The task cannot do without it; for the others a failed connection is no failure.
        env: Variables of one that is a command: those of the sandbox, of which some harnesses pass on a few only.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """One activation, as a harness has to be told of it.

    Attributes:
        command: The harness's program and first arguments, where it runs.
        folder: A private folder of the session for the harness's own files, kept between its turns. HOME is left as it
            is: tools that the task brings may need it.
        workdir: Where the harness works; its current directory.
        model_url: Base URL of the model server, without `/v1`.
        model_key: API key for it.
        model_name: Name of the model to ask for.
        system_prompt: Of the configuration, the request's instructions and its system messages; literal text.
        prompt: The user's task; literal text.
        timeout_seconds: Until the harness is ended from outside.
        number: 1 for the first activation of the session.
        max_output_tokens: Of one model call, where the request bounds it.
        invocation_id: Id of the activation in the trajectory.
        session: The harness's own id of its session, as the activation before read it; None for the first.
    """

    command: Sequence[str]
    folder: str
    workdir: str
    model_url: str
    model_key: str
    model_name: str
    tools: Sequence[ToolServer]
    system_prompt: str
    prompt: str
    timeout_seconds: float
    number: int = 1
    max_output_tokens: int | None = None
    invocation_id: str = ""
    session: str | None = None

    def path(self, *parts: str) -> str:
        """Absolute path of something in `folder`."""
        return str(PurePosixPath(self.folder, *parts))


@dataclass(frozen=True)
class Invocation:
    """A process to start.

    Attributes:
        argv: Program and arguments.
        env: Variables beside those of the sandbox.
        files: Files to write before, by their path below `folder`; readable by the harness alone.
        stdin: What it reads; nothing by default.
        collect: Folder below `folder` whose files are evidence.
        noise: Lines of standard output that begin with one of these texts are dropped as they come.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    collect: str | None = None
    noise: Sequence[str] = ()


@dataclass
class Evidence:
    """What a process left. It is untrusted: whatever is read from it has to be checked.

    Attributes:
        stdout: Its standard output, whole lines, bounded.
        stderr: The end of its error output.
        files: What `Invocation.collect` names, by path below it, bounded.
        exit_code: None while it has not ended.
        timed_out: It was ended because its time was up.
        ended: Whether none of its processes is left; None where that is not known.
        gaps: What is missing and why.
    """

    stdout: str = ""
    stderr: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    exit_code: int | None = None
    timed_out: bool = False
    ended: bool | None = None
    duration_seconds: float = 0.0
    gaps: list[str] = field(default_factory=list)

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON objects among the lines of standard output."""
        return json_lines(self.stdout)


@dataclass(frozen=True)
class CallTiming:
    """When a tool call ran, as far as the harness says it. Unix times; milliseconds."""

    started_at: float | None = None
    completed_at: float | None = None
    duration_ms: float | None = None
    failed: bool = False


@dataclass
class Reading:
    """What an adapter found in the evidence.

    Attributes:
        items: What model and tools did, as Responses items, in order.
        usage: Of all model calls together; None where the harness does not say.
        stop: Why the harness stopped, in its final event: `completed`, or a reason of an incomplete response
            (`max_output_tokens`, `max_turns`, ...). None: it never came to its end.
        error: What ended the run, in the harness's words, where the model or a tool server failed it.
        error_kind: A kind of `gym.failures`, where the adapter knows better than the words of `error` tell: one of a
            model server; `tool_server_error`, before anything was done; `configuration`.
        session: The harness's own id of the session.
        model_calls: How many there were; 0 where it is not known.
        responses: Ids of the model's responses, in order.
        timings: By call id.
        gaps: What is missing or could not be read.
    """

    items: list[Item] = field(default_factory=list)
    usage: Usage | None = None
    stop: str | None = None
    error: str | None = None
    error_kind: str | None = None
    session: str | None = None
    model_calls: int = 0
    responses: list[str] = field(default_factory=list)
    timings: dict[str, CallTiming] = field(default_factory=dict)
    gaps: list[str] = field(default_factory=list)


def json_lines(text: str | bytes) -> Iterator[dict[str, Any]]:
    """The lines that are JSON objects; a half-written or foreign line is passed over."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    for line in text.split("\n"):
        if line.lstrip()[:1] != "{":
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one: evidence may hold anything anywhere."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[dict[str, Any]]:
    """The mappings in the value if it is a list, else none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_text(value: Any) -> str:
    """The value if it is a text, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    """The value if it is a count, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def tokens(*, read: int, written: int, cached: int, reasoning: int) -> Usage:
    """Usage in tokens. `read` has all of the prompt, also what came from a cache; `written` includes reasoning."""
    return Usage(
        input_tokens=read,
        output_tokens=written,
        total_tokens=read + written,
        input_tokens_details={"cached_tokens": cached},
        output_tokens_details={"reasoning_tokens": reasoning},
    )
