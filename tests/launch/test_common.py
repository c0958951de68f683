"""What all sandboxes of a run have reaches the providers of every process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gym.launch.hosting import Apart, Place, hosted
from gym.launch.in_process import Instance
from gym.launch.slices import Part
from gym.sandbox.interface import Common, Mount, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig
from gym.servers.base import Call, Server, ServerConfig, route
from tests.sandbox.conftest import bubblewrap
from tests.servers.parts import Said, no_sandboxes


class Asked(Server[ServerConfig]):
    """Makes a sandbox, and says what it shows and whose it is."""

    @route("/ask")
    async def ask(self, body: Said, call: Call) -> Any:
        """The text is a command."""
        provider = self.context.sandboxes("box")
        sandbox = await provider.create(SandboxSpec(labels={"rollout": "r1"}))
        (found,) = await provider.found()
        result = await sandbox.exec(body.text)
        await sandbox.stop()
        return [result.stdout_text, dict(found.labels), found.left]


async def test_servers_with_processes_of_their_own_make_such_sandboxes(tmp_path: Path) -> None:
    bubblewrap(tmp_path)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    (runtime / "tool").write_text("it is here")
    common = Common({"run": "results/x"}, (Mount(runtime, "/gym/runtime"),))
    box = Part.of(LocalProvider, LocalProviderConfig(isolation="bubblewrap", root=tmp_path / "sandboxes"), "box")
    instance = Instance("asked", "resources_servers", Asked, ServerConfig())
    apart = Apart(instance, {"box": box}, common=common)
    async with hosted([], [apart], sandboxes=no_sandboxes, place=Place(tell=lambda _: None)) as running:
        client = running.launched.client
        body = {"text": "cat /gym/runtime/tool"}
        answer = await client.post_json(f"{running.url('asked')}/ask", body, cookies={}, headers=client.auth)
    assert answer[0] == ["it is here", {"run": "results/x", "rollout": "r1"}, False]
