"""The suite of sandbox providers, as a project of somebody else uses it: with the provider that the docs make."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs import snippets

PAGE = snippets.ROOT / "docs" / "contributing" / "add-a-sandbox-provider.md"
ASKED = "fence or renew or is_no_url or exit_code"
HANGING = """
import asyncio
import pytest
from gym.testing.sandbox_conformance import *
from gym.testing.sandbox_conformance import checks
from sandboxes.folder import FolderProvider, FolderProviderConfig, FolderSandbox

checks.SECONDS = 0.5
checks.BLOCKED_SECONDS = 0.5


class Hanging(FolderProvider):
    async def create(self, spec):
        sandbox = await super().create(spec)
        sandbox.read_file = lambda path, max_bytes: asyncio.Event().wait()
        return sandbox


class Unclosable(FolderProvider):
    async def aclose(self):
        await asyncio.Event().wait()


@pytest.fixture(params=[Hanging, Unclosable])
def make_provider(request):
    return lambda: request.param(FolderProviderConfig())
"""


def run(folder: Path, *arguments: str) -> str:
    """Runs pytest as that project would, without our settings; what it says."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{snippets.ROOT}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout + done.stderr


def test_a_provider_of_another_project_goes_through_it(tmp_path: Path) -> None:
    snippets.write(snippets.read(PAGE), tmp_path)
    said = run(tmp_path, "tests/test_folder.py", "-k", ASKED)
    assert "failed" not in said, said
    assert "error" not in said, said
    for method in ("fence", "renew", "gym_url"):
        assert f"FolderSandbox has no `{method}` of its own, which `Sandbox` calls optional" in said
    assert "passed" in said


def test_what_hangs_fails(tmp_path: Path) -> None:
    snippets.write(snippets.read(PAGE), tmp_path)
    (tmp_path / "tests" / "test_hanging.py").write_text(HANGING)
    said = run(tmp_path, "tests/test_hanging.py", "-k", "missing_and_wrong or test_stdin")
    assert "AssertionError: the test did not end within 0.5 s" in said
    assert "AssertionError: the provider did not close within 0.5 s" in said
    assert "AssertionError: the event loop was blocked for more than 0.5 s" in said
