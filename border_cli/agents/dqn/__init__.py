"""The value-based family for discrete actions."""
