"""Networks of one provider: at most one a policy, shared by its sandboxes, which do not reach each other.

Docker has room for about 30 networks, so they are made when first needed and removed with the provider. Sandboxes reach
the Gym servers through a relay on the gateway's address, so the servers themselves can stay on loopback. `gym_only`
is an internal network: nothing is routed out of it. What else listens on this machine would still be in reach; as root,
filter rules on the network's own bridge close that too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import shutil
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gym.errors import Problem, UserError
from gym.failures import EpisodeFailure
from gym.sandbox.addresses import is_loopback
from gym.sandbox.interface import Network
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.relay import Relay
from gym.sandbox.shared import Shared

RESOLV = Path("/etc/resolv.conf")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bridge:
    """A network.

    Attributes:
        name: At the daemon, and of its device on this machine.
        gateway: Address of this machine in it.
        addresses: Of this machine and the containers in it.
        internal: Nothing is routed out of it.
    """

    name: str
    gateway: str
    addresses: ipaddress.IPv4Network
    internal: bool


class Networks:
    """The networks and relays of one provider."""

    def __init__(self, daemon: Daemon, labels: dict[str, str]) -> None:
        self._daemon = daemon
        self._labels = labels
        self._made: dict[Network, Shared[Bridge]] = {}
        self._relays: dict[tuple[str, str, int], Relay] = {}

    async def mode(self, network: Network) -> str:
        """The network mode of a container with this policy; the network is made when it is first needed.

        Raises:
            EpisodeFailure: `sandbox_start`: it cannot be made.
        """
        if network == "none":
            return network
        make = partial(self._make, internal=network == "gym_only")
        try:
            return (await self._made.setdefault(network, Shared(make)).get()).name
        except DaemonError as error:
            hint = "; remove unused networks with `docker network prune`" if "address pool" in str(error) else ""
            raise EpisodeFailure("sandbox_start", f"no Docker network could be made: {error}{hint}") from error

    async def _make(self, *, internal: bool) -> Bridge:
        name = f"gym{secrets.token_hex(5)}"
        options = {"com.docker.network.bridge.name": name, "com.docker.network.bridge.enable_icc": "false"}

        def make(api: Any) -> Bridge:
            api.create_network(name, driver="bridge", options=options, internal=internal, labels=self._labels)
            return look_up(api, name)

        made = await self._daemon.call(make)
        if internal:
            await asyncio.to_thread(close_bridge, name)
        return made

    async def reach(self, mode: str, host: str, port: int) -> tuple[str, int]:
        """The address by which containers of a network mode reach a Gym server.

        Raises:
            UserError: they cannot.
            DaemonError: there is no such network.
        """
        if mode == "none":
            fix = "set network to gym_only, or open"
            raise UserError(Problem(f"a sandbox with network `none` cannot reach {host}:{port}", fix, key="network"))
        bridge = await self._daemon.call(lambda api: look_up(api, mode))
        if not bridge.internal and not is_loopback(host):
            return host, port
        key = (mode, host, port)
        if key not in self._relays:
            listener = _listen(bridge)
            self._relays[key] = Relay(listener, (host, port), bridge.addresses)
            if bridge.internal:
                await asyncio.to_thread(open_port, bridge, listener.getsockname()[1])
        return bridge.gateway, self._relays[key].port

    async def aclose(self) -> None:
        """Close the relays and remove the networks, which no container may use any more."""
        for relay in self._relays.values():
            await relay.aclose()
        self._relays.clear()
        while self._made:
            bridge = await self._made.popitem()[1].ended()
            if bridge is not None:
                await self._daemon.call(partial(remove_network, name=bridge.name))


def attach(api: Any, container: str, mode: str) -> None:
    """Give a container another network mode while it runs."""
    now = api.inspect_container(container)["NetworkSettings"]["Networks"]
    for name in now.keys() - {mode}:
        api.disconnect_container_from_network(container, name)
    if mode != "none" and mode not in now:
        api.connect_container_to_network(container, mode)


def name_servers() -> list[str]:
    """Those of this machine that others reach too."""
    words = [line.split() for line in RESOLV.read_text().splitlines()] if RESOLV.is_file() else []
    found = [word[1] for word in words if word[:1] == ["nameserver"] and len(word) > 1]
    return [address for address in found if not is_loopback(address)]


def look_up(api: Any, name: str) -> Bridge:
    """A network that the daemon has."""
    found = api.inspect_network(name)
    ranges = found["IPAM"]["Config"]
    # The default network does not say its gateway, which is its first address.
    addresses = ipaddress.IPv4Network(ranges[0]["Subnet"])
    gateway = ranges[0].get("Gateway", "").partition("/")[0] or str(addresses[1])
    return Bridge(name, gateway, addresses, bool(found["Internal"]))


def _listen(bridge: Bridge) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.bind((bridge.gateway, 0))
        listener.listen(512)
    except OSError as error:
        listener.close()
        what = f"this process cannot listen at {bridge.gateway}, where containers reach this machine: {error.strerror}"
        fix = "where the daemon runs on another machine, set network to open and default_host to an address it reaches"
        raise UserError(Problem(what, fix, key="network")) from error
    return listener


def remove_network(api: Any, name: str) -> None:
    """Remove a network, if it is still there, and the filter rules of its bridge."""
    import docker.errors

    with suppress(docker.errors.NotFound):
        api.remove_network(name)
    if _may_filter():
        listed = subprocess.run(["iptables", "-w", "-S", "INPUT"], capture_output=True, text=True, check=False).stdout
        for line in listed.splitlines():
            words = line.split()
            if words[:1] == ["-A"] and name in words:
                subprocess.run(["iptables", "-w", "-D", *words[1:]], capture_output=True, check=False)


def close_bridge(name: str) -> None:
    """Let nothing from a bridge reach this machine, but answers to what this machine began."""
    if not (
        _may_filter()
        and _insert(name, "-j", "DROP")
        and _insert(name, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT")
    ):
        log.warning("gym_only: without filter rules, sandboxes reach all that listens on any address of this machine")


def open_port(bridge: Bridge, port: int) -> None:
    """Let sandboxes reach one port of this machine."""
    if _may_filter():
        _insert(bridge.name, "-p", "tcp", "-d", bridge.gateway, "--dport", str(port), "-j", "ACCEPT")


def _may_filter() -> bool:
    return os.geteuid() == 0 and shutil.which("iptables") is not None


def _insert(name: str, *words: str) -> bool:
    rule = ["iptables", "-w", "-I", "INPUT", "-i", name, *words]
    return subprocess.run(rule, capture_output=True, check=False).returncode == 0
