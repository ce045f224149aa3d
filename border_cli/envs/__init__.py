"""Gymnasium environments: making, checking and stepping them, and their spaces as data."""
