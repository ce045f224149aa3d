"""Signals, seeds, clocks and shared memory."""
