"""Tests with real libraries that only extras install: `make test-extras`."""
