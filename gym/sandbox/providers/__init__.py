"""Sandbox providers, one module or folder each."""
