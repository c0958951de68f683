"""Commands as a user types them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def gym(*arguments: str, cwd: Path, module: str = "gym.run") -> subprocess.CompletedProcess[str]:
    """Runs `python -m gym.run`, or the command `gym`."""
    start = "import sys; from gym.cli.main import main; sys.exit(main())"
    command = ["-c", start] if module == "gym" else ["-m", module]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command, *arguments], cwd=cwd, env=env, capture_output=True, text=True, timeout=300
    )
