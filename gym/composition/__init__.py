"""Files and overrides become one resolved configuration."""
