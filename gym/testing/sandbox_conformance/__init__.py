"""What every sandbox provider must do, as tests for pytest with pytest-asyncio: for providers of ours and of others.

A test module of a provider's own takes all of them, and says what they are about:

    from gym.testing.sandbox_conformance import *  # noqa: F403

    @pytest.fixture
    def make_provider(tmp_path):
        return lambda: MyProvider(MyProviderConfig(root=tmp_path))

What the interface calls optional is skipped where a provider leaves it out.
"""

import pytest

for _name in ("checks", "commands", "files", "life", "network"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from gym.testing.sandbox_conformance.checks import *  # noqa: E402, F403
from gym.testing.sandbox_conformance.commands import *  # noqa: E402, F403
from gym.testing.sandbox_conformance.files import *  # noqa: E402, F403
from gym.testing.sandbox_conformance.life import *  # noqa: E402, F403
from gym.testing.sandbox_conformance.network import *  # noqa: E402, F403
