"""A runtime bundle and a private folder in a sandbox: found where they are mounted or lie, else brought there once."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import PurePosixPath

from gym.errors import UserError
from gym.failures import EpisodeFailure
from gym.harness.bundles import MANIFEST, MOUNTED, Bundle
from gym.sandbox.interface import ExecResult, Mount, Sandbox
from gym.sandbox.programs import SYSTEM_PATH

UPLOADED = "/gym-runtimes"
SETUP_SECONDS = 600.0
SYSTEM_FIRST = ("/bin/sh", "-c", f'PATH={SYSTEM_PATH}:$PATH; exec "$@"', "sh")
"""Before a command of our own: it may run as root, and others than root may have put programs into PATH."""

# One process tells all: which of the given folders has the bundle, the processor, and which C libraries there are.
LOOK = r"""
for at in "$@"; do [ -f "$at/{manifest}" ] && echo "at $at" && break; done
echo "machine $(uname -m)"
for c in /lib/ld-musl-* /lib64/ld-linux-* /lib/ld-linux-* /lib/*-linux-gnu/ld-linux-*; do
  [ -e "$c" ] && echo "libc $c"
done
true
""".replace("{manifest}", MANIFEST)

SAME_MACHINE = {"x64": ("x86_64", "amd64"), "arm64": ("aarch64", "arm64")}


def mount(bundle: Bundle) -> Mount:
    """The bundle as a sandbox that can mount folders is to show it."""
    return Mount(bundle.path, f"{MOUNTED}/{bundle.recipe.key}")


async def place(sandbox: Sandbox, bundle: Bundle, architecture: str) -> str:
    """The path of a bundle in a sandbox; it is uploaded where it is not there yet.

    Raises:
        EpisodeFailure: `configuration`: its programs cannot run there; `sandbox_lost`.
    """
    uploaded = f"{UPLOADED}/{bundle.recipe.key}"
    # Where nothing is hidden, the bundle's own path is there too.
    places = [f"{MOUNTED}/{bundle.recipe.key}", uploaded, str(bundle.path)]
    found = await run(sandbox, ["/bin/sh", "-c", LOOK, "sh", *places])
    said = [line.partition(" ")[::2] for line in found.stdout_text.splitlines()]
    refuse_unfit(bundle, said, architecture)
    at = next((path for word, path in said if word == "at"), None)
    if at is None:
        await _upload(sandbox, bundle, uploaded)
    return at or uploaded


def refuse_unfit(bundle: Bundle, said: list[tuple[str, str]], architecture: str) -> None:
    """Refuses a sandbox in which the programs cannot run, by what it said of itself.

    Raises:
        EpisodeFailure: `configuration`.
    """
    machine = next((value for word, value in said if word == "machine"), "")
    libraries = [value for word, value in said if word == "libc"]
    if machine and machine not in SAME_MACHINE.get(architecture, (machine,)):
        what = f"the sandbox has the processor {machine}, and the runtime was installed for {architecture}"
        raise EpisodeFailure("configuration", f"{bundle.recipe} cannot run: {what}", stage="seed")
    if bundle.recipe.needs_glibc and libraries and all("musl" in path for path in libraries):
        what = "it needs glibc, and the image has musl; use an image that is based on glibc"
        raise EpisodeFailure("configuration", f"{bundle.recipe} cannot run: {what}", stage="seed")


async def _upload(sandbox: Sandbox, bundle: Bundle, target: str) -> None:
    """Several sessions of one sandbox may do this at once: the last step shows it whole or not at all."""
    arriving = f"{UPLOADED}/.{secrets.token_hex(6)}"
    await sandbox.upload(bundle.path, arriving)
    moved = await run(sandbox, ["/bin/sh", "-c", '[ -e "$2" ] && rm -rf "$1" || mv "$1" "$2"', "sh", arriving, target])
    if moved.exit_code != 0:
        message = f"the runtime {bundle.recipe} could not be put into the sandbox: {moved.stderr_text.strip()[:300]}"
        raise EpisodeFailure("sandbox_start", message, stage="seed")


async def make_folder(sandbox: Sandbox, workdir: str, user: str | None) -> str:
    """A new private folder beside the work directory, or in /tmp where the root is read-only; gone with the session.

    Raises:
        EpisodeFailure: `configuration`: there is no such user; `sandbox_start` where it cannot be made otherwise;
            `sandbox_lost`.
    """
    name = f".gym-{secrets.token_hex(6)}"
    folder = str(PurePosixPath(workdir).parent / name)
    script = 'umask 077 && mkdir -p "$1" && { [ -z "$2" ] || chown -R "$2" "$1"; }'
    making = ["/bin/sh", "-c", script, "sh", folder]
    made = await run(sandbox, [*making, user or ""])
    if made.exit_code != 0:  # the image's own user may not write there
        owner = user or (await run(sandbox, ["id", "-u"])).stdout_text.strip()
        made = await _as_root(sandbox, [*making, owner]) or made
    if made.exit_code != 0:
        folder = f"/tmp/{name}"
        made = await run(sandbox, [*making[:-1], folder, user or ""])
    if made.exit_code != 0 and user is not None and (await run(sandbox, ["id", "-u", user])).exit_code == 1:
        message = f"the sandbox has no user `{user}`; name one of its image, or leave `user` out"
        raise EpisodeFailure("configuration", message, stage="seed")
    if made.exit_code != 0:
        message = f"no folder for the harness can be made in the sandbox: {made.stderr_text.strip()[:300]}"
        raise EpisodeFailure("sandbox_start", message, stage="seed")
    return folder


async def remove(sandbox: Sandbox, folder: str) -> None:
    """Removes a private folder with the session's key and configuration in it."""
    await run_or_as_root(sandbox, ["rm", "-rf", "--", folder])


async def write_files(sandbox: Sandbox, folder: str, files: dict[str, str], user: str | None) -> None:
    """Writes files below a private folder, readable by the harness alone."""
    for name, text in files.items():
        await sandbox.upload(text.encode(), f"{folder}/{name}", mode=0o600)
    if user is not None and files:
        await run_or_as_root(sandbox, ["chown", "-R", user, folder])


async def run(sandbox: Sandbox, argv: list[str]) -> ExecResult:
    """Runs a small command of our own as the sandbox's own user."""
    return await sandbox.exec([*SYSTEM_FIRST, *argv], cwd="/", timeout_seconds=SETUP_SECONDS)


async def run_or_as_root(sandbox: Sandbox, argv: list[str]) -> ExecResult:
    """Runs a small command of our own as the sandbox's own user, and once more as root where that one may not do it."""
    done = await run(sandbox, argv)
    return done if done.exit_code == 0 else await _as_root(sandbox, argv) or done


async def _as_root(sandbox: Sandbox, argv: list[str]) -> ExecResult | None:
    """None where the sandbox has no root."""
    with suppress(UserError):
        return await sandbox.exec([*SYSTEM_FIRST, *argv], cwd="/", user="0", timeout_seconds=SETUP_SECONDS)
    return None
