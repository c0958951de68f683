"""The base of all harness adapters: an agent server that runs somebody else's program and reads what it did.

An adapter says what to install (`runtime`), how to start it (`invocation`), how to read what it left (`read`), and what
it can do (class attributes). See docs/harnesses.md.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from gym.apis.responses import ResponsesRequest, ResponsesResponse
from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harness import bundles, placing, trajectory
from gym.harness.adapter import Evidence, Invocation, Reading, Turn
from gym.harness.config import HarnessAgentConfig
from gym.harness.evidence import judge, shortened
from gym.harness.prompts import compose
from gym.harness.recipes import Recipe, architecture
from gym.harness.seat import Seat
from gym.harness.tools import as_reached_from, refuse_clashes, tool_servers, with_environment
from gym.sandbox.interface import SandboxProvider, SandboxSpec
from gym.servers import deadline
from gym.servers.agent import AgentServer, AgentSession, activation_seconds
from gym.servers.base import ServerContext, ServerError
from gym.servers.capabilities import Capability
from gym.servers.sandbox_access import AgentSandbox, take_sandbox

RESERVE_SECONDS = 10.0
"""Kept of an activation's time, at most half of it, for ending the harness and reading what it left."""

READY_SECONDS = 120.0
log = logging.getLogger(__name__)
ConfigT = TypeVar("ConfigT", bound=HarnessAgentConfig)


class HarnessAgent(AgentServer[ConfigT]):
    """Runs a harness in a sandbox, or on this machine, and answers with what it did.

    Attributes:
        harness: Its name in messages.
        tries_optional_tools: It is silent about a tool server that fails: also those that are not required are tried.
        settings: Settings of a request, such as `max_output_tokens`, that the harness can be told of. Others are
            refused: they would be left out silently.
    """

    config_type = HarnessAgentConfig
    transports = frozenset({"mcp"})
    needs_sandbox = True
    task_users = True
    tries_optional_tools: ClassVar[bool] = False
    harness: ClassVar[str]
    settings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: ConfigT, context: ServerContext) -> None:
        super().__init__(config, context)
        self._host: SandboxProvider | None = None

    @classmethod
    def asks_of_model(cls, config: ConfigT) -> dict[Capability, str]:  # noqa: ARG003
        """A shell, at least, is a tool."""
        return {"tools": "works with tools of its own"}

    @classmethod
    @abstractmethod
    def runtime(cls, config: ConfigT) -> Recipe:
        """What to install."""

    @abstractmethod
    def invocation(self, turn: Turn) -> Invocation:
        """How to start the harness for one activation."""

    @abstractmethod
    def read(self, evidence: Evidence) -> Reading:
        """What the harness did. The evidence may be cut short anywhere, and may be forged by the task's code."""

    def readiness(self, turn: Turn) -> Invocation | None:  # noqa: ARG002
        """A process that connects to the tools without asking the model; None where the harness has none."""
        return None

    def unready(self, turn: Turn, evidence: Evidence) -> str | None:  # noqa: ARG002
        """Why the tools that are required cannot be used, after `readiness` has run; None where they can."""
        return None if evidence.exit_code == 0 else f"exit code {evidence.exit_code}: {evidence.stderr.strip()[-300:]}"

    def left_out(self, turn: Turn, evidence: Evidence) -> list[str]:  # noqa: ARG002
        """The tools that it goes on without, after `readiness` has run, one line each."""
        return []

    def check_runtime(self, bundle: bundles.Bundle) -> None:
        """Refuses settings that the installed runtime has no place for.

        Raises:
            UserError: What it has instead.
        """

    def tool_server_name(self, name: str) -> str:
        """The name of an MCP server as the harness has it in the names of its tools."""
        return name

    async def start(self) -> None:
        """Installs the runtime, unless it is here, and checks what only now can be checked."""
        bundle = await self._bundle()
        refuse_clashes(self.name, self.config.mcp_servers, self.tool_server_name)
        self.check_runtime(bundle)

    async def open(self, session: AgentSession) -> None:
        """Takes the sandbox, brings the runtime there, and proves that the required tools can be reached."""
        if self.config.execution == "host" and session.request.sandbox_access is not None:
            what = "the task's files are in a sandbox, and `execution: host` would run the harness outside of it"
            raise ServerError(422, f"{self.name}: {what}")
        static = self.config.mcp_servers
        named = tool_servers(static, session.request.tool_accesses, self.tool_server_name)
        bundle = await self._bundle()
        try:
            place = await self._sandbox(session, bundle)
            model = self.context.client.directory.url(self.config.model_server.name)
            model_url = await place.sandbox.gym_url(model)
            serves = self.context.client.directory.serves
            given = {tool.name for tool in named if tool.name in static or not serves(tool.url)}
            tools = await as_reached_from(place.sandbox, named, given)
            user = place.user or self.config.user
            tools = await with_environment(place.sandbox, tools, user)
            root = await placing.place(place.sandbox, bundle, architecture())
            folder = await placing.make_folder(place.sandbox, place.workdir, user)
            seat = Seat(place, folder, bundle.command(root), model_url, tuple(tools), user)
        except UserError as error:
            raise EpisodeFailure("configuration", str(error), stage="seed") from error
        session.state["seat"] = seat
        if any(tool.required or self.tries_optional_tools for tool in tools):
            await self._prove_ready(session, seat)

    def check_activation(self, session: AgentSession, request: ResponsesRequest) -> None:  # noqa: ARG002
        """Refuses settings that the harness could not be told of."""
        given = {name for name in ("temperature", "top_p", "max_output_tokens") if getattr(request, name) is not None}
        if foreign := sorted(given - self.settings):
            what = f"{self.harness} cannot pass on {', '.join(foreign)} of a request"
            raise ServerError(422, f"{self.name}: {what}; set it on the model server instead")
        compose(self.config.system_prompt, request)

    async def run(self, session: AgentSession, request: ResponsesRequest) -> ResponsesResponse:
        """Runs the harness to its end, or to the end of its time, and judges what it did."""
        seat: Seat = session.state["seat"]
        record = trajectory.Record(max(1, session.activation))
        turn = self._turn(session, seat, request, record.invocation_id)
        seat.records.append(record)
        evidence = Evidence()
        try:
            await seat.launch(turn, self.invocation(turn), evidence, turn.timeout_seconds)
            record.ended(self.read(evidence), evidence)
            verdict = judge(self.harness, record.reading, evidence, self.config.unchecked())
        except EpisodeFailure as failure:
            record.status, record.error_type = "failed", failure.kind
            record.told_by_harness = record.duration_ms is not None
            self._keep_partial(record, evidence)
            raise
        except asyncio.CancelledError:
            record.status, record.stop_reason = "incomplete", "cancelled"
            self._keep_partial(record, evidence)
            raise
        except Exception as error:
            log.exception("%s: the evidence of %s cannot be read", self.name, session.id)
            record.status, record.error_type = "failed", "agent_error"
            message = f"{self.harness} left evidence that cannot be read: {type(error).__name__}: {error}"
            raise EpisodeFailure("agent_error", shortened(message), stage="agent") from error
        finally:
            session.cleanup_confirmed = evidence.ended
        record.judged(verdict)
        return trajectory.response(record, self.config.model_name, verdict)

    async def close(self, session: AgentSession) -> dict[str, Any] | None:
        """What the harness did in all activations. Its private folder is removed from a lent sandbox."""
        seat: Seat | None = session.state.get("seat")
        if seat is None:
            return None
        if not seat.sandbox.owned and not session.state.get("left"):
            try:
                await placing.remove(seat.sandbox.sandbox, seat.folder)
            except EpisodeFailure as failure:  # a sandbox that is gone has nothing left in it
                log.info("%s: %s", self.name, failure.message)
            session.state["left"] = True
        ref = self.config.model_server
        return trajectory.bundle(
            f"{self.harness} {self.runtime(self.config).version}",
            seat.records,
            gaps=seat.gaps,
            sandbox_id=seat.sandbox.sandbox.id,
            image_digest=seat.sandbox.sandbox.image_digest,
            model={"type": ref.type, "name": ref.name},
        )

    async def stop(self) -> None:
        """Ends the sessions that nobody closed, and their folders on this machine."""
        await super().stop()
        if self._host is not None:
            await self._host.aclose()

    async def _bundle(self) -> bundles.Bundle:
        recipe = self.runtime(self.config)
        found = bundles.installed(recipe)
        return found if found is not None else await asyncio.to_thread(bundles.prepare, recipe)

    async def _sandbox(self, session: AgentSession, bundle: bundles.Bundle) -> AgentSandbox:
        """Resources' sandbox, one of the agent's own that shows the runtime, or a folder on this machine."""
        labels = {"agent": self.name, "session": session.id, "rollout": session.request.episode_id.key}
        if self.config.execution == "host":
            provider, spec = self._on_this_machine(), SandboxSpec(network="open", labels=labels)
        elif session.request.sandbox_access is not None or self.config.sandbox_provider is None:
            return await take_sandbox(self, self.config, session)
        else:
            provider = self.context.sandboxes(self.config.sandbox_provider)
            spec = self.config.sandbox_config.spec(labels)
            if provider.capabilities.mounts:
                spec = replace(spec, mounts=(placing.mount(bundle),))
        sandbox = await provider.create(spec)
        session.sandbox = own = AgentSandbox(sandbox, sandbox.workdir, owned=True)
        return own

    def _on_this_machine(self) -> SandboxProvider:
        if self._host is None:
            from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

            self._host = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True))
        return self._host

    async def _prove_ready(self, session: AgentSession, seat: Seat) -> None:
        turn = self._turn(session, seat, ResponsesRequest(input="ready?"))
        invocation = self.readiness(turn)
        if invocation is None:
            return
        evidence = Evidence()
        seconds = deadline.bounded(READY_SECONDS) or READY_SECONDS
        await seat.launch(turn, invocation, evidence, seconds)
        why = "no answer in time" if evidence.timed_out else self.unready(turn, evidence)
        if why is not None:
            message = f"{self.harness} cannot use the tools that the task requires: {shortened(why)}"
            raise EpisodeFailure("tool_server_error", message, stage="seed")
        seat.gaps = [f"an MCP server is left out: {what}" for what in self.left_out(turn, evidence)]

    def _turn(self, session: AgentSession, seat: Seat, request: ResponsesRequest, invocation_id: str = "") -> Turn:
        prompts = compose(self.config.system_prompt, request)
        left = deadline.remaining()
        inner = float("inf") if left is None else left - min(RESERVE_SECONDS, left / 2)
        # A task that gives a time of its own means it, whatever the configuration says for the others.
        own = float("inf") if activation_seconds(request) is not None else self.config.timeout_seconds
        return Turn(
            command=seat.command,
            folder=seat.folder,
            workdir=seat.sandbox.workdir,
            model_url=seat.model_url,
            model_key=self.session_key(session),
            model_name=self.config.model_name,
            tools=seat.tools,
            system_prompt=prompts.system,
            prompt=prompts.user,
            timeout_seconds=min(own, inner),
            number=max(1, session.activation),
            max_output_tokens=request.max_output_tokens,
            invocation_id=invocation_id,
            session=seat.records[-1].reading.session if seat.records else None,
        )

    def _keep_partial(self, record: trajectory.Record, evidence: Evidence) -> None:
        """What a run that was cut short had done until then, as far as it can be read."""
        if record.duration_ms is not None:
            return
        try:
            reading = self.read(evidence)
        except Exception as error:
            reading = Reading(gaps=[f"the evidence cannot be read: {type(error).__name__}"])
        record.ended(reading, evidence)
