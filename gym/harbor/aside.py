"""Files that make tests say something else than they would: settings of pytest, and what Python runs at its start.

Those that have come since an agent did are set aside before its tests run: renamed, so that nothing reads them.
"""

from __future__ import annotations

import re

from gym.harbor.boxes import Box
from gym.harbor.programs import Programs

SETTINGS = ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg")
TOP = frozenset(f"/{name}" for name in (*SETTINGS, "pyproject.toml"))
"""Where pytest looks for settings of tests in /tests."""

STARTUP = re.compile(r"/(sitecustomize|usercustomize)(\.[^/]+|/__init__\.[^/]+)?$")
PATHS = re.compile(r"/[^/]+\.pth$")
FOUND_BYTES = 4 * 1024 * 1024

FIND = r"""
find / -xdev -newerct "@$1" '(' -name 'sitecustomize*' -o -name 'usercustomize*' -o -name '*.pth' -o \
    -path '/[!/]*' ! -path '/*/*' ')' ! -type d 2>/dev/null
true
"""
# What installers write into such files is known; anything else that is run there is not.
PTH = r"""
for file in "$@"; do
    grep -E '^import[[:space:]]' -- "$file" 2>/dev/null | grep -Evq \
        -e '^import _virtualenv$' -e '^import __editable__[A-Za-z0-9_]+; ?__editable__[A-Za-z0-9_]+\.install\(\)$' \
        -e '^import os; ?var = .SETUPTOOLS_USE_DISTUTILS.;' -e '^import sys, ?types, ?os; ?has_mfs = ' && echo "$file"
done
true
"""
ASIDE = r"""
for file in "$@"; do
    { [ -e "$file" ] || [ -L "$file" ]; } && mv -f -- "$file" "$file.gym-aside" && printf '%s\n' "$file"
done
true
"""


async def set_aside(box: Box, before: Programs, since_seconds: str) -> list[str]:
    """Renames such files, or puts the image's own back; returns notes on that.

    Args:
        since_seconds: When the agent came, by the sandbox's clock.

    Raises:
        EpisodeFailure: `sandbox_lost`.
    """
    changed = await box.sandbox.changed_files()
    if changed is None:
        said = await box.as_root(FIND, since_seconds, max_output_bytes=FOUND_BYTES)
        new = dict.fromkeys(said.stdout_text.splitlines(), "added")
    else:
        new = {path: how for path, how in changed.items() if path not in (before.changed or ())}
    suspects = {path for path in new if path in TOP or STARTUP.search(path)}
    suspects |= set(await _that_run(box, [path for path in new if PATHS.search(path) and new[path] != "removed"]))
    own = {path for path in suspects if new[path] == "changed"}
    done = await box.sandbox.restore(own) if own else []
    others = sorted(path for path in suspects - own if new[path] == "added")
    done += (await box.as_root(ASIDE, *others)).stdout_text.splitlines() if others else []
    # Python itself writes there.
    done = [path for path in done if "/__pycache__/" not in path]
    return [f"settings that change what tests say were set aside: {', '.join(done)[:300]}"] if done else []


async def _that_run(box: Box, paths: list[str]) -> list[str]:
    """Of files that extend Python's path, those that run something which is not known."""
    said = await box.as_root(PTH, *paths) if paths else None
    return said.stdout_text.splitlines() if said else []
