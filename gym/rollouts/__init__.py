"""Collecting rollouts: dispatch, journal, resume, failures."""
