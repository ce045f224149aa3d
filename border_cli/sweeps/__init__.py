"""Sweeps: many runs from one command, each in a process of its own, some at a time."""
