"""Sandboxes that are Docker containers."""

from gym.sandbox.providers.docker.provider import DockerProvider
from gym.sandbox.providers.docker.settings import DockerProviderConfig

__all__ = ["DockerProvider", "DockerProviderConfig"]
