"""border-cli: off-policy reinforcement learning from the command line."""
__version__ = "0.1.0"
