"""What the shipped providers' sandboxes do with files, by the suite that every provider can be put through."""

from gym.testing.sandbox_conformance.files import *  # noqa: F403
