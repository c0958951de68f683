"""Runs in the sandbox: a program, and its tests. The mark is printed by one that passed them all."""

import json
import os
import sys
from typing import Any

asked = json.load(sys.stdin)
print("begun", flush=True)
# The tested program may print and ask as it likes.
answers = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
space: dict[str, Any] = {"__name__": "solution"}
exec(compile(asked["program"], "solution.py", "exec"), space)
exec(compile(asked["test"], "test.py", "exec"), space)
space["check"](space[asked["entry_point"]])
os.write(answers, asked["mark"].encode())
