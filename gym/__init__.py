"""Gym evaluates AI agents: compose, plan, launch, run episodes, verify, report."""

__version__ = "0.1.0"
