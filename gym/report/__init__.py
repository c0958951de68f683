"""Metrics, tables and comparison of results."""
