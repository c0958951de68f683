"""A resolved configuration becomes a plan: instances, routes, pairings, tasks."""
