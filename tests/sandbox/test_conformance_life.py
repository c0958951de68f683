"""How the shipped providers' sandboxes live and end, by the suite that every provider can be put through."""

from gym.testing.sandbox_conformance.life import *  # noqa: F403
