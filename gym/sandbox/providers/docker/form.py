"""A container as the daemon is asked for it: how a spec becomes arguments of the SDK."""

from __future__ import annotations

import math
from typing import Any

from gym.sandbox.interface import Resources, SandboxSpec
from gym.sandbox.providers.docker.scripts import MAIN
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.words import checked_environment

# A container outlives its sandbox's own bound by this much, so that the end has one cause.
SLACK_SECONDS = 5
# Ours in each container: its first processes, and the shell around each command.
OWN_PROCESSES = 8
MIB = 1024 * 1024
CPU_PERIOD = 100_000
"""Microseconds over which a share of the cores is counted."""


def ttl(config: DockerProviderConfig, spec: SandboxSpec) -> int:
    """Seconds after which a container ends by itself."""
    return math.ceil(spec.ttl_seconds or config.default_ttl_seconds) + SLACK_SECONDS


def settings(config: DockerProviderConfig, spec: SandboxSpec) -> dict[str, Any]:
    """Arguments of `create_container`.

    Raises:
        ValueError: `env` holds a name that no environment can hold.
    """
    return {
        "entrypoint": ["/bin/sh", "-c", MAIN, "gym-sandbox"],
        "command": [str(ttl(config, spec))],
        # Root's, whoever commands run as: no process of theirs may change it, and it makes the work directory.
        "user": "0",
        "working_dir": spec.workdir,
        "environment": checked_environment(spec.env, utf8=True),
        "hostname": "sandbox",
        "healthcheck": {"test": ["NONE"]},
    }


def host(config: DockerProviderConfig, spec: SandboxSpec, mode: str) -> dict[str, Any]:
    """Arguments of `create_host_config`; `mode` is the network mode."""
    import docker.types

    tmpfs = dict(config.tmpfs)
    if config.read_only_root:
        tmpfs = dict.fromkeys(("/tmp", "/var/tmp", "/run", spec.workdir), "exec,mode=1777") | tmpfs
    return {
        **_limits(config.limits(spec.resources)),
        "network_mode": mode,
        "auto_remove": True,
        "read_only": config.read_only_root,
        "tmpfs": tmpfs,
        "cap_drop": config.cap_drop or None,
        "security_opt": ["no-new-privileges"] if config.no_new_privileges else None,
        "extra_hosts": {"host.docker.internal": "host-gateway"} if spec.network == "open" else None,
        # Else the daemon may look names up for a sandbox that must not reach anything.
        "dns": ["127.0.0.1"] if spec.network == "gym_only" else None,
        "log_config": docker.types.LogConfig(type="none"),
        "mounts": [
            docker.types.Mount(mount.target, str(mount.source.resolve()), type="bind", read_only=True)
            for mount in spec.mounts
        ],
    }


def _limits(limits: Resources) -> dict[str, Any]:
    """Upper limits, as arguments of `create_host_config`."""
    import docker.types

    memory = None if limits.memory_mib is None else limits.memory_mib * MIB
    ulimits = [docker.types.Ulimit(name="core", soft=0, hard=0)]
    if limits.disk_mib is not None:
        size = limits.disk_mib * MIB
        ulimits.append(docker.types.Ulimit(name="fsize", soft=size, hard=size))
    return {
        # Of more cores than there are, this is no limit; asked for by `nano_cpus`, the daemon would refuse them.
        "cpu_period": None if limits.cpu is None else CPU_PERIOD,
        "cpu_quota": None if limits.cpu is None else int(limits.cpu * CPU_PERIOD),
        "mem_limit": memory,
        # The same number: no swap on top of it.
        "memswap_limit": memory,
        "pids_limit": None if limits.pids is None else limits.pids + OWN_PROCESSES,
        "ulimits": ulimits,
    }
