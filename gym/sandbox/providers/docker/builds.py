"""Images built from a folder with a Dockerfile: each once a run, several at a time, with an end that is certain.

The daemon's classic builder does it, so a Dockerfile cannot use what only BuildKit knows (`RUN --mount`, heredocs).
"""

from __future__ import annotations

import asyncio
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gym.errors import Problem, UserError
from gym.sandbox.interface import ImageBuild, ImageFacts, ImageProgress, OnImageProgress
from gym.sandbox.providers.docker.daemon import Daemon, DaemonError
from gym.sandbox.providers.docker.images import Images
from gym.sandbox.shared import Shared
from gym.sandbox.spec import TASK_LABEL
from gym.sandbox.waiting import uncancelled

LAST_LINES = 12
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
OF_THE_DAEMON = (" ---> ", "Removing intermediate container")
ONLY_BUILDKIT = ("requires BuildKit", "unknown instruction", "Unknown flag: mount")


class Builds:
    """The builds of one provider.

    Args:
        again: Build also what is there, with what the daemon has kept of its layers: a base may be another one now.
    """

    def __init__(self, daemon: Daemon, images: Images, *, again: bool) -> None:
        self._daemon = daemon
        self._images = images
        self._again = again
        self._known: dict[str, Shared[ImageFacts]] = {}
        self._failed: dict[str, UserError] = {}
        self._slots = asyncio.Semaphore(max(2, (os.cpu_count() or 1) // 2))

    async def ready(self, order: ImageBuild, on_progress: OnImageProgress | None) -> ImageFacts:
        """An image, built if it has to be; work for the same tag is shared, and what has failed is not tried again.

        Raises:
            UserError: It cannot be built; with the last lines of the build.
            DaemonError: The daemon does not answer.
        """
        if order.tag in self._failed:
            raise self._failed[order.tag]
        work = partial(self._get, order, on_progress or (lambda _: None))
        return await self._known.setdefault(order.tag, Shared(work)).get()

    async def aclose(self) -> None:
        """Give up what is still being built."""
        for image in self._known.values():
            await image.ended(cancel=True)

    async def _get(self, order: ImageBuild, tell: OnImageProgress) -> ImageFacts:
        found = None if self._again else await self._images.inspect(order.tag)
        if found is None:
            async with self._slots:
                tell(ImageProgress(order.tag, "building", message=_title(order)))
                try:
                    await self._build(order)
                except UserError as error:
                    self._failed[order.tag] = error
                    tell(ImageProgress(order.tag, "failed", message=error.problems[0].what))
                    raise
            found = await self._images.inspect(order.tag)
            if found is None:
                raise _failed(order, "the image is not there, although it was just built", ())
            tell(ImageProgress(order.tag, "ready", message=_title(order)))
        else:
            tell(ImageProgress(order.tag, "here"))
        self._images.adopt(found)
        return found

    async def _build(self, order: ImageBuild) -> None:
        run = _Run(order)
        work = asyncio.ensure_future(self._daemon.call(lambda _: run.build(self._daemon.new_client())))
        try:
            done, _ = await asyncio.wait({work}, timeout=order.timeout_seconds)
        except asyncio.CancelledError:
            await uncancelled(_over(run, work))
            raise
        if not done:
            await uncancelled(_over(run, work))
            raise _failed(order, f"not done within {order.timeout_seconds:g} s", run.last)
        try:
            work.result()
        except DaemonError as error:
            if error.status == 0 and not run.last:
                raise
            raise _failed(order, str(error)[:500], run.last) from error


async def _over(run: _Run, work: asyncio.Future[None]) -> None:
    """Closes the connection, at which the daemon gives the build up."""
    while not work.done():
        await asyncio.to_thread(run.give_up)
        await asyncio.wait({work}, timeout=0.2)
    work.exception()


class _Run:
    """One build, in a thread; `give_up` ends it from another one.

    Attributes:
        last: The last lines that it wrote.
    """

    def __init__(self, order: ImageBuild) -> None:
        self.last: deque[str] = deque(maxlen=LAST_LINES)
        self._order = order
        self._stream: Any = None

    def build(self, client: Any) -> None:
        """Blocks until the end of the build.

        Raises:
            DaemonError: The build failed.
        """
        import docker.types

        answers: list[Any] = []
        client.hooks["response"] = [lambda answer, **_: answers.append(answer)]
        try:
            events = client.build(
                path=str(self._order.context),
                tag=self._order.tag,
                labels=dict(self._order.labels),
                rm=True,
                forcerm=True,
                decode=True,
            )
            if not answers[-1].ok:
                next(events)  # raises what the daemon says of it; a cancellable stream would end without a word
            self._stream = docker.types.CancellableStream(events, answers[-1])
            for error in self._read(self._stream):
                raise DaemonError(500, error)
        finally:
            for answer in answers:
                answer.close()
            client.close()

    def give_up(self) -> None:
        """Close the connection, if there is one yet."""
        if self._stream is not None:
            self._stream.close()

    def _read(self, events: Any) -> Iterator[str]:
        """Keeps what the build writes, and yields its error."""
        for event in events:
            if "error" in event:
                yield str(event["error"])
            lines = COLOURS.sub("", str(event.get("stream", ""))).splitlines()
            self.last += [line.strip() for line in lines if line.strip() and not line.startswith(OF_THE_DAEMON)]


def _title(order: ImageBuild) -> str:
    return order.labels.get(TASK_LABEL, order.tag)


def _failed(order: ImageBuild, reason: str, last: Sequence[str] | deque[str]) -> UserError:
    fix = ""
    if any(map(reason.__contains__, ONLY_BUILDKIT)):
        fix = f"this needs BuildKit; build it yourself: `docker build -t {order.tag} {order.context}`"
    told = f"; it said at the end: {' | '.join(last)}" if last else ""
    what = f"the image of {_title(order)} could not be built: {' '.join(reason.split())}{told}"
    return UserError(Problem(what, fix, where=str(order.context / "Dockerfile"), data={"image": order.tag}))
