"""What the shipped providers' sandboxes do with commands, by the suite that every provider can be put through."""

from gym.testing.sandbox_conformance.commands import *  # noqa: F403
