"""The `gym` command."""
