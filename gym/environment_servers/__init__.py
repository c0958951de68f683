"""Environment server implementations, one folder each."""
