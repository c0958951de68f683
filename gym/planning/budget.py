"""Do the bounds of an episode nest?

An environment server gives an episode its deadline, and each cleanup its own time. What the servers of the episode
may take at most, by their own settings, has to fit: else work would be cut off that was promised its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gym.servers.contract import ServerRef
from gym.servers.environment import EnvironmentServerConfig

if TYPE_CHECKING:
    from gym.planning.plan import Plan
    from gym.planning.resolve import Instance

WINDOW = "session_close_retry_window_seconds"


@dataclass(frozen=True)
class Bound:
    """The longest time that one thing may take. `setting` names where it comes from."""

    server: str
    setting: str
    seconds: float
    in_cleanup: bool = False

    def __str__(self) -> str:
        return f"{self.seconds:g} s {self.server}.{self.setting}"


def bounds(made: Plan, environment: Instance) -> list[Bound]:
    """The bounds that an environment server's episodes contain, in the order of the episode."""
    found = []
    for _, ref in environment.config:
        instance = made.instances.get(ref.name) if isinstance(ref, ServerRef) else None
        if instance is not None:
            for setting, (seconds, in_cleanup) in instance.config.bounds().items():
                found.append(Bound(instance.name, setting, seconds, in_cleanup))
    return found


def check(made: Plan) -> None:
    """Refuses bounds that do not fit into what contains them, with the sum."""
    for environment in made.of_type("environment_servers"):
        config = environment.config
        assert isinstance(config, EnvironmentServerConfig)
        inner = bounds(made, environment)
        _queue(made, environment, config)
        _receipts(made, environment, config)
        episode = config.default_episode_timeout_seconds
        parts = [bound for bound in inner if not bound.in_cleanup]
        if episode is not None and sum(bound.seconds for bound in parts) > episode:
            made.resolved.problem(
                (*environment.key, "default_episode_timeout_seconds"),
                f"{episode:g} s cannot hold {_sum(parts)}",
                "raise it, or lower one of these",
            )
        for bound in inner:
            if bound.in_cleanup and bound.seconds > config.cleanup_timeout_seconds:
                made.resolved.problem(
                    (*environment.key, "cleanup_timeout_seconds"),
                    f"{config.cleanup_timeout_seconds:g} s cannot hold {bound}",
                    "raise it",
                )


def _receipts(made: Plan, environment: Instance, config: EnvironmentServerConfig) -> None:
    """A close may be asked for again as long as its cleanup lasts, and its answer must be there until then."""
    for _, ref in environment.config:
        agent = made.instances.get(ref.name) if isinstance(ref, ServerRef) else None
        if agent is None or WINDOW not in agent.config.model_fields_set:
            continue
        window = getattr(agent.config, WINDOW)
        if window < config.cleanup_timeout_seconds:
            what = f"{window:g} s, but a close may be asked for again for {config.cleanup_timeout_seconds:g} s"
            what += f" (cleanup_timeout_seconds of {environment.name})"
            made.resolved.problem((*agent.key, WINDOW), what, "raise it, or leave it out")


def _queue(made: Plan, environment: Instance, config: EnvironmentServerConfig) -> None:
    queue, episode = config.queue_timeout_seconds, config.default_episode_timeout_seconds
    if queue is None:
        return
    if config.max_concurrent_episodes is None:
        what = f"{environment.name} admits every episode at once: queue_timeout_seconds: {queue:g} has no effect"
        made.notes.append(f"{what} without max_concurrent_episodes")
    elif episode is not None and queue >= episode:
        made.resolved.problem(
            (*environment.key, "queue_timeout_seconds"),
            f"{queue:g} s in the queue, but an episode itself has {episode:g} s (default_episode_timeout_seconds)",
            "lower it",
        )


def _sum(parts: Sequence[Bound]) -> str:
    total = sum(bound.seconds for bound in parts)
    return " + ".join(map(str, parts)) + (f" = {total:g} s" if len(parts) > 1 else "")
