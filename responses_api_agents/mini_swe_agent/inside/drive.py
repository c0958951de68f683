"""Runs mini-SWE-agent once: its own loop, prompts, shell and parser, and this file's client for the model.

Runs in the sandbox. What is to be done is JSON on standard input; whatever happens is a JSON line on standard output.
The package's own client, litellm, is not used: it takes eight seconds of a processor to load, and hides what the model
server says.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# A Python that leaves everything out leaves the script's own folder out, too.
sys.path.insert(0, str(Path(__file__).parent))
gym_skills: Any = importlib.import_module("gym_skills")
gym_tools: Any = importlib.import_module("gym_tools")

PAUSE_SECONDS = 2.0
SAID_BYTES = 4000
Object = dict[str, Any]


class ModelFailed(Exception):
    """The model server refused, failed, or gave no answer that can be read."""

    def __init__(self, message: str, kind: str | None = None, *, again: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        self.again = again


def tell(event: str, **fields: Any) -> None:
    """Writes an event."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Model:
    """The model as mini-SWE-agent asks it: stateless, over the Responses API."""

    def __init__(self, told: Object, templates: Object) -> None:
        self.config = None
        self._told = told
        self._templates = templates
        self._calls = importlib.import_module("minisweagent.models.utils.actions_toolcall_response")

    def query(self, messages: list[Object], **_: Any) -> Object:
        """The model's next turn. One without a command that can be run is a `FormatError` of the package."""
        response = self._answered(self._input(messages))
        output = response["output"]
        incomplete = (response.get("incomplete_details") or {}).get("reason")
        tell("answer", id=response.get("id"), items=output, usage=response.get("usage"), incomplete=incomplete)
        actions = self._calls.parse_toolcall_actions_response(
            output,
            format_error_template=self._templates["format_error_template"],
            template_kwargs={"finish_reason": self._calls.finish_reason_from_responses_api(response)},
        )
        return {**response, "object": "response", "extra": {"actions": actions, "cost": 0.0, "timestamp": time.time()}}

    def _input(self, messages: list[Object]) -> list[Object]:
        items: list[Object] = []
        for message in messages:
            said = message["output"] if message.get("object") == "response" else [message]
            items += [{name: value for name, value in item.items() if name != "extra"} for item in said]
        return items

    def _answered(self, items: list[Object]) -> Object:
        body = {"model": self._told["name"], "input": items, "tools": [self._calls.BASH_TOOL_RESPONSE_API]}
        for attempt in range(self._told["retries"] + 1):
            try:
                return self._ask(json.dumps({**body, **self._told["settings"]}).encode())
            except ModelFailed as failure:
                if attempt == self._told["retries"] or not failure.again:
                    raise
            time.sleep(PAUSE_SECONDS * 2**attempt)
        raise AssertionError

    def _ask(self, body: bytes) -> Object:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._told['key']}"}
        request = urllib.request.Request(f"{self._told['url']}/v1/responses", body, headers)
        try:
            with gym_tools.OPENER.open(request, timeout=self._told["timeout_seconds"]) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            said = error.read(SAID_BYTES).decode("utf-8", "replace")
            raise ModelFailed(f"HTTP {error.code}: {said}", again=error.code == 429 or error.code >= 500) from error
        except OSError as error:
            raise ModelFailed(f"the model server: {getattr(error, 'reason', error)}", "provider_unreachable") from error
        except ValueError as error:
            raise ModelFailed(f"the answer of the model is no JSON: {error}", "malformed_answer") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
            raise ModelFailed("the answer of the model has no output", "malformed_answer")
        if answer.get("status") == "failed":
            raise ModelFailed(f"the model failed: {json.dumps(answer.get('error'))}", again=False)
        return answer

    def format_message(self, **message: Any) -> Object:
        """A message as it stands."""
        return message

    def format_observation_messages(
        self, message: Object, outputs: list[Object], template_vars: Object | None = None
    ) -> list[Object]:
        """The outputs of commands as the model is to read them."""
        observed: list[Object] = self._calls.format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=self._templates["observation_template"],
            template_vars=template_vars,
        )
        for item in observed:
            tell("observed", call_id=item.get("call_id"), output=item.get("output"))
        return observed

    def get_template_vars(self, **_: Any) -> Object:
        """Nothing of this client is for prompts."""
        return {}

    def serialize(self) -> Object:
        """Nothing of it is saved: the events tell."""
        return {}


class Shell:
    """The package's local environment, which tells of each command."""

    def __init__(self, settings: Object) -> None:
        self._local = importlib.import_module("minisweagent.environments.local").LocalEnvironment(**settings)
        self.config = self._local.config
        self.get_template_vars = self._local.get_template_vars
        self.serialize = self._local.serialize

    def execute(self, action: Object, cwd: str = "") -> Object:
        """Runs a command; one that submits ends the run."""
        begun = time.time()
        output: Object = {}
        try:
            # The model may have removed the folder that it works in: without this, no command would run any more.
            output = self._local.execute(action, cwd or ("" if Path(self.config.cwd).is_dir() else "/"))
        except importlib.import_module("minisweagent.exceptions").Submitted as submitted:
            output = {"output": submitted.messages[0]["content"], "returncode": 0}
            raise
        finally:
            fields = {"output": output.get("output"), "returncode": output.get("returncode")}
            tell("executed", call_id=action.get("tool_call_id"), begun=begun, ended=time.time(), **fields)
        return output


def settings_of(told: Object, skills: str) -> Object:
    """The package's settings, those of the configuration, and the prompts."""
    config = importlib.import_module("minisweagent.config")
    base = config.get_config_from_spec(str(config.builtin_config_dir / told["base_config"]))
    merge = importlib.import_module("minisweagent.utils.serialize").recursive_merge
    settings: Object = merge(base, *told["settings"])
    agent = settings["agent"] = {**settings["agent"], "cost_limit": 0}
    # Prompts of ours are variables of the templates, so that they stay literal.
    if told["system_prompt"]:
        own = f"{agent['system_template'].rstrip()}\n\n" if told["append"] else ""
        agent["system_template"] = own + "{{ gym_system }}"
    if skills:
        agent["system_template"] = agent["system_template"].rstrip() + "{{ gym_skills }}"
    if told["tools"]:
        agent["instance_template"] = f"{agent['instance_template'].rstrip()}\n\n{{{{ gym_tools }}}}"
    return settings


def unfit(error: Exception) -> int:
    """Says that the package cannot be set like this; returns the exit code."""
    print(f"the settings do not fit: {type(error).__name__}: {error}", file=sys.stderr)
    return 2


def run(told: Object) -> int:
    """Runs the agent to its end; returns the exit code."""
    tools = f"{told['tools']}\n\n{gym_tools.described()}" if told["tools"] else ""
    skills = gym_skills.described()
    try:
        settings = settings_of(told, skills)
    except Exception as error:
        return unfit(error)
    chosen = {name: settings.get("environment", {}).get(name) for name in ("env", "timeout")}
    shell = Shell({"cwd": told["workdir"], **{name: value for name, value in chosen.items() if value is not None}})
    model = Model(told["model"], settings["model"])
    try:
        agent = importlib.import_module("minisweagent.agents.default").DefaultAgent(model, shell, **settings["agent"])
    except (TypeError, ValueError) as error:
        return unfit(error)
    try:
        ended = agent.run(told["task"], gym_system=told["system_prompt"], gym_skills=skills, gym_tools=tools)
    except ModelFailed as failure:
        tell("error", message=str(failure), kind=failure.kind)
        return 1
    tell("end", exit_status=ended.get("exit_status"), submission=ended.get("submission"))
    return 0


def main() -> int:
    """Reads what is to be done, and does it."""
    told = json.load(sys.stdin)
    os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": told["home"]}
    importlib.import_module("minisweagent")
    for name in ("MSWEA_SILENT_STARTUP", "MSWEA_GLOBAL_CONFIG_DIR"):  # not for the commands of the model
        del os.environ[name]
    try:
        with gym_tools.kept():
            return run(told)
    except gym_tools.ToolError as error:
        tell("error", message=str(error), kind="tool_server_error")
        return 1


if __name__ == "__main__":
    sys.exit(main())
