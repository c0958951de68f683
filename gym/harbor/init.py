"""A new dataset: one whole task, ready to be proven and changed."""

from __future__ import annotations

from pathlib import Path

from gym.composition.roots import shown
from gym.errors import Problem, UserError
from gym.harbor.names import PACKAGE

FIRST = "first-task"
FILES = {
    "dataset.toml": """\
[dataset]
name = "local/{name}"
description = "One line about the tasks."

# What Gym reads beside it; other tools ignore it.
[gym]
type = "benchmark"

[gym.defaults]
num_repeats = 1
""",
    f"{FIRST}/task.toml": """\
schema_version = "1.4"

[task]
name = "{name}/first-task"

[agent]
timeout_sec = 600

[environment]
docker_image = "{image}"
workdir = "/app"
network_mode = "no-network"
cpus = 1
memory_mb = 1024

[verifier]
timeout_sec = 60
""",
    f"{FIRST}/instruction.md": "Write the sum of the numbers from 1 to 100 to the file `sum` in `/app`.\n",
    f"{FIRST}/tests/test.sh": """\
#!/bin/bash
# Runs after the agent, and says what its work is worth.
if [ "$(cat /app/sum 2>/dev/null)" = 5050 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
""",
    f"{FIRST}/solution/solve.sh": """\
#!/bin/bash
# What the oracle does: it must get the reward 1.
seq 1 100 | awk '{{ sum += $1 }} END {{ print sum }}' > /app/sum
""",
}
"""Text by name, for `str.format`."""


def init(folder: Path, image: str) -> Path:
    """Writes a dataset of one task.

    Raises:
        UserError: The folder exists, or its name cannot be one of a dataset.
    """
    name = folder.absolute().name
    if not PACKAGE.fullmatch(f"local/{name}"):
        raise UserError(Problem(f"`{name}` cannot be the name of a dataset", "use letters, digits, `-`, `_` and `.`"))
    if folder.exists():
        raise UserError(Problem(f"{shown(folder.absolute())} exists already", "name a folder that does not"))
    try:
        for path, text in FILES.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text.format(name=name, image=image), encoding="utf-8")
    except OSError as error:
        raise UserError(Problem(f"{shown(folder.absolute())} cannot be written: {error.strerror}")) from error
    return folder
