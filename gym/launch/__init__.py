"""A plan becomes running servers."""
