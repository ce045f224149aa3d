"""Long campaigns of faults against the real command; `python -m tests.campaigns --help`."""
