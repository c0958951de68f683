"""Model server implementations, one folder each."""
