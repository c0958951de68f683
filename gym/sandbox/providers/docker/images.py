"""Images: pulled by policy, once a run each, with errors that say what to do; and their digests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gym.errors import Problem, UserError
from gym.sandbox.interface import ImageFacts, ImageProgress, OnImageProgress
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.settings import DockerProviderConfig
from gym.sandbox.shared import Shared

PULLS = 4
UNREACHABLE = ("no such host", "connection refused", "i/o timeout", "timeout", "no route", "unreachable", "EOF")
BUILD = (
    "`docker load` or `docker build` it, or choose another with sandbox.default_image=...; in a checkout of Gym, "
    "`python tests/tools/base_image.py` builds gym-base"
)
LOAD = "`docker load` or `docker build` it"


class Images:
    """The images of one provider."""

    def __init__(self, daemon: Daemon, config: DockerProviderConfig) -> None:
        self._daemon = daemon
        self._config = config
        self._ready: dict[str, Shared[ImageFacts]] = {}
        self._pulls = asyncio.Semaphore(PULLS)

    async def ready(self, name: str, on_progress: OnImageProgress | None = None) -> ImageFacts:
        """An image, pulled if it has to be; work for the same image is shared.

        Raises:
            UserError: it cannot be had.
            DaemonError: the daemon does not answer.
        """
        work = partial(self._get, name, on_progress or _silent)
        return await self._ready.setdefault(name, Shared(work)).get()

    def adopt(self, image: ImageFacts) -> None:
        """Take one that was just built as it is: no registry has it."""

        async def known() -> ImageFacts:
            return image

        self._ready[image.name] = Shared(known)

    def forget(self, name: str) -> None:
        """Look again before the next use: it was removed meanwhile."""
        self._ready.pop(name, None)

    async def aclose(self) -> None:
        """Give up what is still being pulled."""
        for image in self._ready.values():
            await image.ended(cancel=True)

    async def prepare(self, names: Sequence[str | None], on_progress: OnImageProgress | None) -> dict[str, str]:
        """See `SandboxProvider.prepare`."""
        unique = filter(None, dict.fromkeys(name or self._config.default_image for name in names))
        outcomes = await asyncio.gather(*(self.ready(name, on_progress) for name in unique), return_exceptions=True)
        problems = [problem for item in outcomes if isinstance(item, UserError) for problem in item.problems]
        others = [item for item in outcomes if isinstance(item, BaseException) and not isinstance(item, UserError)]
        if others:
            raise others[0]
        if problems:
            raise UserError(problems)
        return {item.name: item.digest for item in outcomes if isinstance(item, ImageFacts)}

    async def _get(self, name: str, tell: OnImageProgress) -> ImageFacts:
        try:
            found = None if self._config.pull == "always" else await self.inspect(name)
            if found is not None:
                tell(ImageProgress(name, "here"))
                return found
            if self._config.pull == "never":
                raise self._missing(name, "and pull is `never`")
            async with self._pulls:
                await self._pull(name, tell)
            found = await self.inspect(name)
            if found is None:
                raise self._missing(name, "although it was just pulled")
        except UserError as error:
            tell(ImageProgress(name, "failed", message=error.problems[0].what))
            raise
        tell(ImageProgress(name, "ready"))
        return found

    async def inspect(self, name: str) -> ImageFacts | None:
        """What the daemon knows of an image; None where it has none of that name.

        Raises:
            UserError: it is no name.
            DaemonError: the daemon does not answer.
        """
        try:
            found = await self._daemon.call(lambda api: api.inspect_image(name))
        except DaemonError as error:
            if error.status == 400:
                raise self._missing(name, f"which is no name of an image: {error}") from error
            if error.status != 404:
                raise
            return None
        digests = found.get("RepoDigests") or []
        config = found["Config"]
        return ImageFacts(
            name,
            digests[0] if digests else found["Id"],
            config.get("User") or "",
            config.get("WorkingDir") or "/",
            tuple(config.get("Entrypoint") or ()),
        )

    async def _pull(self, name: str, tell: OnImageProgress) -> None:
        loop = asyncio.get_running_loop()

        def pull(api: Any) -> None:
            layers: dict[str, tuple[int, int]] = {}
            for event in api.pull(name, stream=True, decode=True):
                if self._daemon.closing.is_set():
                    raise DaemonError(0, "given up")
                if "error" in event:
                    raise DaemonError(500, str(event["error"]))
                progress = event.get("progressDetail") or {}
                if event.get("status") == "Downloading" and "total" in progress:
                    layers[event["id"]] = (progress["current"], progress["total"])
                    loop.call_soon_threadsafe(tell, _downloaded(name, list(layers.values())))

        tell(ImageProgress(name, "pulling"))
        try:
            await self._daemon.call_aside(pull)
        except DaemonError as error:
            if error.status == 0:
                raise
            raise self._missing(name, _reason(str(error))) from error

    def _missing(self, name: str, reason: str) -> UserError:
        key, fix = ("sandbox.default_image", BUILD) if name == self._config.default_image else ("image", LOAD)
        return UserError(Problem(f"the image `{name}` is not here, {reason}", fix, key=key, data={"image": name}))


def _silent(_: ImageProgress) -> None:
    """Told to nobody."""


def _downloaded(name: str, layers: list[tuple[int, int]]) -> ImageProgress:
    return ImageProgress(name, "pulling", sum(done for done, _ in layers), sum(total for _, total in layers))


def _reason(said: str) -> str:
    """Why a pull failed, in our words and the daemon's."""
    said = said[:300]
    contains: Callable[[str], bool] = said.__contains__
    if any(map(contains, UNREACHABLE)):
        return f"and its registry cannot be reached ({said})"
    if any(map(contains, ("denied", "not found", "manifest unknown", "unauthorized"))):
        return f"and its registry does not have it, or wants a `docker login` ({said})"
    return f"and it could not be pulled ({said})"
