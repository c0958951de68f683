"""The local provider itself: choice of isolation, settings, records, borrowing."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from pydantic import ValidationError

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.sandbox import processes
from gym.sandbox.interface import Mount, SandboxProvider, SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig, default_root
from tests.sandbox.running import PROJECT, run_python


async def test_no_isolation_has_to_be_allowed(tmp_path: Path) -> None:
    provider = LocalProvider(LocalProviderConfig(isolation="none", root=tmp_path))
    assert not provider.isolated
    assert provider.describe() == "plain temporary directory, NO isolation"
    with pytest.raises(UserError) as caught:
        await provider.create(SandboxSpec(image="i", workdir="w", mounts=(Mount(tmp_path, "/m"),)))
    assert [problem.key for problem in caught.value.problems] == ["sandbox.isolation", "workdir", "image", "mounts"]
    assert "allow_unisolated: true" in str(caught.value)


CHOICE = """
import asyncio, sys
from gym.errors import UserError
from gym.sandbox.interface import SandboxSpec
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

provider = LocalProvider(LocalProviderConfig(isolation=sys.argv[1] if len(sys.argv) > 1 else "{0}"))
try:
    print(provider.describe())
    asyncio.run(provider.create(SandboxSpec()))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("bubblewrap", ["sandbox.isolation  the program `bwrap` is not installed; install bubblewrap, or set"]),
        (
            "auto",
            ["plain temporary directory, NO isolation", "sandbox.isolation  sandboxes would not be isolated: the"],
        ),
    ],
)
def test_without_bubblewrap(isolation: str, expected: list[str]) -> None:
    done = run_python(CHOICE.format(isolation), PATH="/nonexistent")
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stderr
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


def test_a_bubblewrap_that_does_not_work_is_explained(tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    done = run_python(CHOICE.format("bubblewrap"), PATH=str(tmp_path))
    assert "`bwrap` does not work here: bwrap: No permissions to create new namespace; install" in done.stdout


def test_settings() -> None:
    with pytest.raises(ValidationError, match="isolaton"):
        LocalProviderConfig.model_validate({"isolaton": "auto"})
    for name, field in LocalProviderConfig.model_fields.items():
        assert field.description, name
    shipped = OmegaConf.to_container(OmegaConf.load(PROJECT / "conf" / "sandbox" / "local.yaml"))
    assert shipped == {"sandbox": {"_target_": f"{LocalProvider.__module__.rpartition('.')[0]}.LocalProvider"}}
    assert LocalProvider.config_type is LocalProviderConfig


async def test_a_root_that_cannot_be_used_is_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = LocalProviderConfig(isolation="none", allow_unisolated=True, root=tmp_path / "file")
    with pytest.raises(EpisodeFailure, match="could not make the sandbox") as caught:
        await LocalProvider(config).create(SandboxSpec())
    assert caught.value.kind == "sandbox_start"


async def test_the_record(tmp_path: Path) -> None:
    config = LocalProviderConfig(
        isolation="none", allow_unisolated=True, root=tmp_path, default_metadata={"team": "a", "rollout": "default"}
    )
    provider = LocalProvider(config)
    sandbox = await provider.create(SandboxSpec(labels={"rollout": "7-0"}, ttl_seconds=60))
    path = tmp_path / sandbox.id / "sandbox.json"
    record = json.loads(path.read_text())
    assert record["labels"] == {"team": "a", "rollout": "7-0"}
    assert record["owner"]["pid"] == os.getpid()
    assert 0 < record["expires_at"] - time.time() <= 60
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    await provider.aclose()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("descriptor", [{}, {"directory": "/"}, {"directory": "/etc/x", "sandbox_id": "x"}])
async def test_connect_takes_only_sandboxes_of_its_root(local: SandboxProvider, descriptor: dict[str, str]) -> None:
    with pytest.raises(EpisodeFailure, match="no sandbox") as caught:
        await local.connect(dict(descriptor))
    assert caught.value.kind == "sandbox_lost"


async def test_connect_needs_the_same_isolation(isolated: SandboxProvider, tmp_path: Path) -> None:
    sandbox = await isolated.create(SandboxSpec())
    other = LocalProvider(LocalProviderConfig(isolation="none", root=tmp_path / "sandboxes"))
    with pytest.raises(EpisodeFailure, match="isolation bubblewrap, not ours"):
        await other.connect(sandbox.descriptor())


async def test_a_borrower_in_another_process(local: SandboxProvider, tmp_path: Path) -> None:
    sandbox = await local.create(SandboxSpec(env={"A": "1"}))
    isolation = "bubblewrap" if local.isolated else "none"
    script = f"""
import asyncio, json, os
from gym.sandbox.providers.local import LocalProvider, LocalProviderConfig

async def main():
    provider = LocalProvider(LocalProviderConfig(isolation={isolation!r}, root={str(tmp_path / "sandboxes")!r}))
    sandbox = await provider.connect(json.loads({json.dumps(sandbox.descriptor())!r}))
    asyncio.ensure_future(sandbox.exec("flock lock sh -c 'echo >locked; exec sleep 1000'"))
    await sandbox.exec("until [ -e locked ]; do sleep 0.01; done; echo $A >seen")
    os._exit(7)

asyncio.run(main())
"""
    done = run_python(script)
    assert done.returncode == 7, done.stderr
    assert await sandbox.read_file("seen", 10) == b"1\n"
    await sandbox.stop()
    assert processes.marked((f"{sandbox.id}:",)) == []


async def test_the_default_root_must_be_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    provider = LocalProvider(LocalProviderConfig(isolation="none", allow_unisolated=True))
    (tmp_path / "elsewhere").mkdir()
    default_root().symlink_to("elsewhere")
    with pytest.raises(UserError, match="not a folder of this user alone"):
        await provider.create(SandboxSpec())
    default_root().unlink()
    await provider.create(SandboxSpec())
    await provider.aclose()
    assert default_root().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("gym.sandbox.interface", ["pydantic", "asyncio", "omegaconf"]),
        ("gym.sandbox.providers.local", ["fastapi", "httpx", "uvicorn", "docker", "rich", "hydra", "omegaconf"]),
        ("gym.sandbox.providers.docker", ["fastapi", "httpx", "uvicorn", "docker", "requests", "rich", "hydra"]),
    ],
)
def test_imports_are_light(module: str, absent: list[str]) -> None:
    done = run_python(f"import sys, {module}; print([name for name in {absent} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr
