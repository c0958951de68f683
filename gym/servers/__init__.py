"""Base classes of the four server types, and how they call each other."""
