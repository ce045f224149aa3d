"""Checkpoints: what is in one, and how it is written and verified."""
