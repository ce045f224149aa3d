"""Judging a policy."""
