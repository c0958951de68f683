"""Another network for a container that runs."""

from __future__ import annotations

from gym.errors import UserError
from gym.sandbox.interface import Network
from gym.sandbox.providers.docker.command import succeed
from gym.sandbox.providers.docker.networks import Networks, attach, name_servers
from gym.sandbox.providers.docker.order import Container


async def switch(container: Container, networks: Networks, network: Network) -> str:
    """Give a container another network; returns its mode then.

    Raises:
        UserError: its root is read-only, and so are its name servers.
        DaemonError: the container is gone, or the daemon does not answer.
        EpisodeFailure: `sandbox_start` when there is no room for such a network, `sandbox_lost`.
    """
    host = (await container.daemon.call(lambda api: api.inspect_container(container.reference)))["HostConfig"]
    # What the container was started with holds for ever: `gym_only` has no name server.
    given = bool(host.get("Dns"))
    if host["ReadonlyRootfs"] and network != "none" and given != (network == "gym_only"):
        what = f"the network of sandbox {container.sandbox_id} cannot be changed to {network}"
        raise UserError(f"{what}: with a read-only root, its name servers stay what they are")
    mode = await networks.mode(network)
    await container.daemon.call(lambda api: attach(api, container.reference, mode))
    if not host["ReadonlyRootfs"]:
        servers = ["127.0.0.1"] if network == "gym_only" else name_servers() if given else ["127.0.0.11"]
        lines = "".join(f"nameserver {address}\n" for address in servers)
        await succeed(container, "cat >/etc/resolv.conf", stdin=lines.encode())
    return mode
