"""The parts of the harness machinery: prompts, verdicts, trajectories, placing and launching."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gym.apis.responses import ResponsesRequest, Usage, function_call, function_call_output, message
from gym.failures import EpisodeFailure
from gym.harness import bundles, launching, placing, trajectory
from gym.harness.adapter import CallTiming, Evidence, Invocation, Reading, json_lines
from gym.harness.evidence import Verdict, judge, kind_of, shortened
from gym.harness.launching import Site
from gym.harness.prompts import Prompts, compose
from gym.sandbox.interface import Sandbox, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.sandbox.providers.local.bubblewrap import probe
from gym.servers.agent import AgentSession
from gym.servers.base import Call, ServerError
from gym.servers.contract import AgentSessionRequest
from responses_api_agents.pi_agent.app import PiAgent
from tests.conftest import needs
from tests.harness.installing import TOOL, installs
from tests.harness.turns import adapter

__all__ = ["installs"]

PROMPTS: list[tuple[str | None, dict[str, Any], Prompts]] = [
    (None, {"input": "task"}, Prompts("", "task")),
    ("config {x}", {"input": "task", "instructions": "instr"}, Prompts("config {x}\n\ninstr", "task")),
    (
        "config",
        {
            "instructions": "instr",
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "dev"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
                {"role": "system", "content": "late"},
            ],
        },
        Prompts("config\n\ninstr\n\ndev\n\nlate", "a\nb"),
    ),
    (
        None,
        {
            "input": [
                {"role": "user", "content": "one"},
                {"type": "reasoning", "summary": []},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
                {"type": "function_call_output", "call_id": "c", "output": "out"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ]
        },
        Prompts(
            "",
            "<conversation>\n[user]\none\n[reasoning]\n[tool call f]\n{}\n[tool result]\nout\n[assistant]\ntwo\n"
            "</conversation>\n\nthree",
        ),
    ),
]


@pytest.mark.parametrize(("configured", "request_", "wanted"), PROMPTS)
def test_prompts(configured: str | None, request_: dict[str, Any], wanted: Prompts) -> None:
    assert compose(configured, ResponsesRequest.model_validate(request_)) == wanted


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("  ", "does not end with a message of the user"),
        ([], "does not end with a message of the user"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}], "does not end with"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "part of type `input_image`"),
        ([{"type": "web_search_call"}, {"role": "user", "content": "x"}], "of the type `web_search_call`"),
    ],
)
def test_input_that_no_harness_takes(given: Any, told: str) -> None:
    with pytest.raises(EpisodeFailure, match=told) as failed:
        compose(None, ResponsesRequest(input=given))
    assert failed.value.kind == "malformed_task"


KINDS = [
    ("401: {'message': 'no'}", "provider_refused"),
    ("unexpected status 403 Forbidden", "provider_refused"),
    ("exceeded retry limit, last status: 429 Too Many Requests", "provider_rate_limited"),
    ("500: {}", "provider_error"),
    ("We are currently experiencing high demand", "provider_error"),
    ("400: This model's maximum context length is 4096 tokens", "context_length_exceeded"),
    ("Codex ran out of room in the model's context window", "context_length_exceeded"),
    ("connect ECONNREFUSED 127.0.0.1:4000", "provider_unreachable"),
    ("Request timed out", "provider_unreachable"),
    ("stream disconnected before completion: stream closed before response.completed", "malformed_answer"),
    ("Stream ended without finish_reason", "malformed_answer"),
    ("Unexpected token < in JSON at position 0", "malformed_answer"),
    ('502: {"detail": "x", "failure": {"kind": "script_exhausted", "stage": null}}', "script_exhausted"),
    ('{\\"kind\\": \\"replay_mismatch\\"}', "replay_mismatch"),
    ("something 'kind': 'sandbox_lost'", "agent_error"),
    ('502: {"failure": {"kind": "tool_server_error"}}', "provider_error"),
    ("something else in 5 minutes and 404.5 s", "agent_error"),
]


@pytest.mark.parametrize(("error", "kind"), KINDS)
def test_what_an_error_message_means(error: str, kind: str) -> None:
    assert kind_of(error) == kind


ITEM = message("assistant", "x")
GRADED = [
    (Reading([ITEM], stop="completed"), Evidence(exit_code=0), Verdict("completed")),
    (Reading([ITEM], stop="completed"), Evidence(exit_code=1), Verdict("completed")),
    (Reading([], stop="completed", model_calls=1), Evidence(exit_code=0), Verdict("completed")),
    (Reading([], stop="completed", usage=Usage(total_tokens=3)), Evidence(exit_code=0), Verdict("completed")),
    (Reading([ITEM], stop="max_turns"), Evidence(exit_code=1), Verdict("incomplete", "max_turns")),
    (Reading([ITEM]), Evidence(exit_code=143, timed_out=True), Verdict("incomplete", "timeout")),
    (Reading([ITEM], error="aborted"), Evidence(exit_code=0, timed_out=True), Verdict("incomplete", "timeout")),
]


@pytest.mark.parametrize(("reading", "evidence", "verdict"), GRADED)
def test_what_is_graded(reading: Reading, evidence: Evidence, verdict: Verdict) -> None:
    assert judge("tool", reading, evidence) == verdict


FAILED = [
    (
        Reading([ITEM]),
        Evidence(exit_code=0, stderr="a\nb\nc\nd\n"),
        "agent_error",
        "without its final event: b / c / d",
    ),
    (Reading(stop="completed"), Evidence(exit_code=0), "agent_error", "ended without asking the model"),
    (Reading(), Evidence(timed_out=True, duration_seconds=9), "agent_timeout", "after 9 s there was no answer"),
    (Reading([ITEM], error="500: x"), Evidence(exit_code=0), "provider_error", "500: x"),
    (Reading(error="x", error_kind="tool_server_error"), Evidence(exit_code=1), "tool_server_error", "tool: x"),
    (Reading([ITEM], error="x", error_kind="tool_server_error"), Evidence(exit_code=1), "agent_error", "tool: x"),
    (Reading([ITEM], error="x", error_kind="sandbox_lost"), Evidence(exit_code=1), "agent_error", "tool: x"),
    (Reading([ITEM], error="x", error_kind="no such kind"), Evidence(exit_code=1), "agent_error", "tool: x"),
]


@pytest.mark.parametrize(("reading", "evidence", "kind", "told"), FAILED)
def test_what_fails_the_episode(reading: Reading, evidence: Evidence, kind: str, told: str) -> None:
    with pytest.raises(EpisodeFailure, match=told) as failed:
        judge("tool", reading, evidence)
    assert (failed.value.kind, failed.value.stage) == (kind, "agent")


@pytest.mark.parametrize(
    ("reading", "exit_code", "kind"),
    [(Reading(), 2, "configuration"), (Reading(), 0, "agent_error"), (Reading([ITEM]), 2, "agent_error")],
)
def test_settings_that_only_the_harness_can_check(reading: Reading, exit_code: int, kind: str) -> None:
    with pytest.raises(EpisodeFailure, match="unknown option") as failed:
        judge("tool", reading, Evidence(exit_code=exit_code, stderr="unknown option --x"), ["extra_args"])
    assert failed.value.kind == kind
    assert ("check extra_args" in failed.value.message) == (kind == "configuration")


SERVER = {"url": "http://host:1/mcp"}
SEED = {"agent_session_id": "s", "episode_id": {"rollout_id": "r"}, "task_id": {"taskset": "t", "task_id": "1"}}
GRANT = {"kind": "mcp", "name": "a.b", "connection": SERVER}
ACCESS = {"connection": {"provider_config_ref": "sandbox", "descriptor": {}}, "workdir": "/work"}


@pytest.mark.parametrize(
    ("settings", "seed", "told"),
    [
        (
            {"mcp_servers": {"a_b": SERVER}},
            {"tool_accesses": [GRANT]},
            "`a_b` of `mcp_servers` and `a.b` of the task are both `a_b` in the harness; rename the one in",
        ),
        ({"execution": "host"}, {"sandbox_access": ACCESS}, "would run the harness outside of it"),
        ({}, {"tool_accesses": [{"kind": "direct_http", "name": "x", "base_url": "y"}]}, "it accepts: mcp"),
    ],
)
async def test_sessions_that_are_refused(settings: dict[str, Any], seed: dict[str, Any], told: str) -> None:
    refusing = adapter(PiAgent, **settings)
    with pytest.raises(ServerError, match=told) as refused:
        await refusing.seed_session(AgentSessionRequest.model_validate({**SEED, **seed}), Call())
    assert refused.value.status == 422
    await refusing.stop()


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"temperature": 0.5, "top_p": 1.0}, "pi cannot pass on temperature, top_p of a request"),
        ({"max_output_tokens": 5}, None),
        ({}, None),
    ],
)
def test_settings_that_a_harness_cannot_be_told_of(params: dict[str, Any], told: str | None) -> None:
    session = AgentSession(AgentSessionRequest.model_validate(SEED))
    request = ResponsesRequest.model_validate({"input": "x", **params})
    with nullcontext() if told is None else pytest.raises(ServerError, match=told):
        adapter(PiAgent).check_activation(session, request)


def test_messages_are_short() -> None:
    assert shortened("a\n b") == "a b"
    assert len(shortened("x" * 10_000)) < 510


def test_foreign_and_half_written_lines_are_passed_over() -> None:
    deep = "[" * 100_000
    text = f'noise\n{{"a": 1}}\n[1]\n{{"half\n{{"deep": {deep}\n"text"\n  {{"b": 2}}\r\n{{"c": 3'
    assert list(json_lines(text)) == [{"a": 1}, {"b": 2}]
    assert list(json_lines(b'\xff\xfe\n{"a": 1}')) == [{"a": 1}]


def test_a_trajectory() -> None:
    reading = Reading(
        items=[function_call("f", {"a": 1}, "c1"), function_call_output("c1", "x"), function_call("g", "{", "c2")],
        timings={"c1": CallTiming(1.0, 2.0, 1000.0, failed=True)},
        responses=["resp_1"],
        session="s",
        gaps=["half of it"],
    )
    record = trajectory.Record(activation=2)
    record.ended(reading, Evidence(stderr="last words", gaps=["no files"], duration_seconds=1.5))
    record.judged(Verdict("incomplete", "timeout"))
    model = {"type": "responses_api_models", "name": "m"}
    observed = trajectory.bundle("tool 1", [record], sandbox_id="box", model=model)
    invocation, first, second = observed["records"]
    assert observed["gaps"] == ["no files", "half of it"]
    assert invocation["model_calls"] == [{"model_ref": model, "response_id": "resp_1"}]
    assert (invocation["status"], invocation["stop_reason"]) == ("incomplete", "timeout")
    assert (invocation["duration_ms"], invocation["log"]) == (1500, "last words")
    assert (first["status"], first["sandbox_id"], first["duration_ms"]) == ("failed", "box", 1000.0)
    assert second["status"] == "incomplete"
    answer = trajectory.response(record, "policy", Verdict("incomplete", "timeout"))
    assert [item.get("malformed_arguments") for item in answer.output] == [None, None, True]
    assert answer.metadata == {"invocation_id": record.invocation_id, "activation": "2"}


@pytest.fixture
async def sandbox(tmp_path: Path) -> Any:
    found = probe()
    needs("bubblewrap", present=not isinstance(found, str), reason=str(found))
    provider = LocalProvider(LocalProviderConfig(isolation="bubblewrap", root=tmp_path / "sandboxes"))
    yield await provider.create(SandboxSpec())
    await provider.aclose()


async def test_a_runtime_is_brought_once(installs: Path, sandbox: Sandbox) -> None:
    bundle = bundles.prepare(TOOL)
    first = await placing.place(sandbox, bundle, "x64")
    assert first == f"/gym-runtimes/{TOOL.key}"
    assert (await sandbox.exec(bundle.command(first))).stdout_text == "tool 1.2.3\n"
    before = (await sandbox.exec(["stat", "-c", "%i", first])).stdout_text
    assert await placing.place(sandbox, bundle, "x64") == first
    assert (await sandbox.exec(["stat", "-c", "%i", first])).stdout_text == before
    assert (await sandbox.exec(["ls", "-A", "/gym-runtimes"])).stdout_text.split() == [TOOL.key]


async def test_a_runtime_is_used_where_it_is_mounted(installs: Path, tmp_path: Path) -> None:
    found = probe()
    needs("bubblewrap", present=not isinstance(found, str), reason=str(found))
    bundle = bundles.prepare(TOOL)
    provider = LocalProvider(LocalProviderConfig(isolation="bubblewrap", root=tmp_path / "sandboxes"))
    mounted = await provider.create(SandboxSpec(mounts=(placing.mount(bundle),)))
    assert await placing.place(mounted, bundle, "x64") == f"/gym/{TOOL.key}"
    await provider.aclose()


@pytest.mark.parametrize(
    ("machine", "libraries", "told"),
    [
        ("aarch64", ["/lib/ld-linux-aarch64.so.1"], "has the processor aarch64"),
        ("x86_64", ["/lib/ld-musl-x86_64.so.1"], "needs glibc, and the image has musl"),
    ],
)
def test_where_a_runtime_cannot_run(installs: Path, machine: str, libraries: list[str], told: str) -> None:
    said = [("machine", machine), *(("libc", path) for path in libraries)]
    with pytest.raises(EpisodeFailure, match=told) as failed:
        placing.refuse_unfit(bundles.prepare(TOOL), said, "x64")
    assert failed.value.kind == "configuration"


def site(sandbox: Sandbox, folder: str) -> Site:
    return Site(sandbox, folder, sandbox.workdir, secrets=("the-key-of-the-session",))


async def test_what_a_process_leaves_is_kept_without_secrets(sandbox: Sandbox) -> None:
    folder = await placing.make_folder(sandbox, sandbox.workdir, None)
    script = """
        cat; echo '{"type":"noise"}'; echo "key: $KEY"; echo "$KEY" >&2; pwd
        mkdir -p "$1/out/deep"; printf "$KEY\\0\\377" >"$1/out/deep/file"; ln -s /etc/passwd "$1/out/link"
        stat -c %a "$1" "$1/conf/a"; exit 3
    """
    invocation = Invocation(
        ["sh", "-c", script, "sh", folder],
        env={"KEY": "the-key-of-the-session"},
        files={"conf/a": "text"},
        stdin=b"in\n",
        collect="out",
        noise=['{"type":"noise"'],
    )
    evidence = Evidence()
    await launching.launch(site(sandbox, folder), invocation, evidence, 30)
    assert evidence.stdout == "in\nkey: ***\n/work\n700\n600\n"
    assert evidence.stderr == "***\n"
    assert (evidence.exit_code, evidence.timed_out, evidence.ended) == (3, False, True)
    assert evidence.files == {"deep/file": b"***\0\xff"}


async def test_what_is_too_much_is_a_gap(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "STDOUT_BYTES", 10_000)
    monkeypatch.setattr(launching, "COLLECT_BYTES", 1000)
    folder = await placing.make_folder(sandbox, sandbox.workdir, None)
    script = 'mkdir "$1/out"; head -c 2000 /dev/zero >"$1/out/big"; seq 100000; echo \'{"type":"last"}\''
    evidence = Evidence()
    invocation = Invocation(["sh", "-c", script, "sh", folder], collect="out")
    await launching.launch(site(sandbox, folder), invocation, evidence, 30)
    assert len(evidence.stdout) < 11_000
    assert list(evidence.events()) == [{"type": "last"}]
    assert evidence.files == {}
    assert [gap.split(" not kept")[0].split()[-1] for gap in evidence.gaps] == ["were", "were"]


async def test_a_process_gets_a_moment_when_its_time_is_up(sandbox: Sandbox) -> None:
    folder = await placing.make_folder(sandbox, sandbox.workdir, None)
    script = "trap 'echo saved; exit 0' TERM; echo begun; sleep 60 & wait"
    evidence = Evidence()
    await launching.launch(site(sandbox, folder), Invocation(["sh", "-c", script]), evidence, 1)
    assert evidence.stdout == "begun\nsaved\n"
    assert (evidence.timed_out, evidence.ended) == (True, True)
