"""The run directory: making it, describing it, loading from it."""
