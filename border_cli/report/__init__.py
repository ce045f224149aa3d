"""Comparing finished runs: what `border-report` reads, computes and writes."""
