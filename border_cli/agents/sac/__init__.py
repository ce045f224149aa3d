"""The actor-critic family for continuous actions."""
