"""The rollout as a prefix of the path, as NeMo Gym's servers name it: `/ng-rollout/<rollout>/v1/responses`.

It attributes the calls of a program that cannot be made to send a header.
"""

from __future__ import annotations

PREFIX = "/ng-rollout/"
CAPTURE = "training-token-capture/"


def with_rollout(path: str, rollout: str) -> str:
    """A path that names its rollout."""
    return f"{PREFIX}{rollout}{path}"


def split(path: str) -> tuple[str | None, str]:
    """The rollout that a path names, and the path without it; None where it names none."""
    if not path.startswith(PREFIX):
        return None, path
    rollout, _, rest = path.removeprefix(PREFIX).partition("/")
    return rollout, f"/{rest.removeprefix(CAPTURE)}"
