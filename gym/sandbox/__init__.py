"""Sandbox interface and providers."""
