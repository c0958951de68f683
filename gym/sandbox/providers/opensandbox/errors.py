"""One class of error, and bounds, for all that is asked of a deployment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class DeploymentError(Exception):
    """The deployment answered with an error, or not at all.

    Attributes:
        status: Of the answer; None when there was none.
        message: In the deployment's own words where it has some.
    """

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@asynccontextmanager
async def answer(seconds: float | None) -> AsyncIterator[None]:
    """Bound calls to the deployment, and turn what goes wrong into `DeploymentError`."""
    import httpx
    from opensandbox.exceptions import SandboxException

    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeploymentError(None, f"no answer within {seconds:g} s") from None
    except SandboxException as error:
        told = error.error.message or Exception.__str__(error)
        raise DeploymentError(getattr(error, "status_code", None), told.strip()[:500]) from error
    except httpx.HTTPError as error:
        raise DeploymentError(None, f"{type(error).__name__}: {error}") from error
