"""Listen inside the network namespace of another process.

A socket belongs to the namespace it was made in, whoever uses it. So a small helper process enters the namespace, makes
the listening sockets there and hands them over: nothing has to run inside, and nothing inside can touch them. The
helper is needed because entering a user namespace takes a process with one thread. Run as a script, this is the helper.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HELPER_SECONDS = 20.0
_NS_GET_USERNS = 0xB701  # linux/nsfs.h
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000


def listen(pid: int, ports: Sequence[int]) -> list[socket.socket]:
    """Listening sockets on loopback `ports` in the network namespace of a process. Blocks.

    Raises:
        OSError: the namespace cannot be entered, or a port is taken.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        argv = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(pid), *map(str, ports)]
        try:
            done = subprocess.run(
                argv,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                pass_fds=[theirs.fileno()],
                timeout=HELPER_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError("no answer from the helper that enters a sandbox's network") from error
        if done.returncode:
            raise OSError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1][:300])
        _, fds, _, _ = socket.recv_fds(ours, 1, len(ports))
    return [socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=fd) for fd in fds]


def _enter(pid: int) -> None:
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    if os.fstat(owner).st_ino != Path("/proc/self/ns/user").stat().st_ino:
        _setns(owner, _CLONE_NEWUSER)
    _setns(network, _CLONE_NEWNET)


def _setns(fd: int, kind: int) -> None:
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(fd, kind):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")


def _serve(channel: int, pid: int, ports: Sequence[int]) -> None:
    _enter(pid)
    listeners = []
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        # All addresses of the namespace: loopback is its only one, and may not be up yet.
        listener.bind(("", port))
        listener.listen(128)
        listeners.append(listener)
    with socket.socket(fileno=channel) as connected:
        socket.send_fds(connected, [b"."], [listener.fileno() for listener in listeners])


if __name__ == "__main__":
    channel_fd, process_id, *wanted = map(int, sys.argv[1:])
    _serve(channel_fd, process_id, wanted)
