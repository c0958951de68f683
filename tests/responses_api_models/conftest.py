from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.responses_api_models.provider import Provider, serving


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serving() as started:
        yield started
