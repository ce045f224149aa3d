"""Comparing finished runs: reading them, statistics over seeds, tables and curves."""
