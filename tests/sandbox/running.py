"""Run Python code in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def run_python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
