"""Sandboxes on this machine: bubblewrap where it works, or plain processes where that is allowed by name."""

from gym.sandbox.providers.local.provider import LocalProvider
from gym.sandbox.providers.local.record import default_root, sweep
from gym.sandbox.providers.local.settings import LocalProviderConfig

__all__ = ["LocalProvider", "LocalProviderConfig", "default_root", "sweep"]
