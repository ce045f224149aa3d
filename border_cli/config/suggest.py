"""The nearest match: what the user probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The candidate most like `word` (upper and lower case count as the same), or None when none is close."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key most like `key`: beside it, else one beside it with this word in it, else by its last part
    anywhere, else as a whole.
    """
    keys = list(known)
    parent, _, leaf = key.rpartition(".")
    beside = {_leaf(k): k for k in keys if k.rpartition(".")[0] == parent}
    longer = {name: key for name, key in beside.items() if leaf in name.split("_")}
    anywhere = {_leaf(k): k for k in reversed(keys)}  # of equal names the first declared stays
    for table, cutoff in ((beside, 0.6), (longer, 0.0), (anywhere, 0.6)):
        match = nearest(leaf, table, cutoff)
        if match:
            return table[match]
    return nearest(key, keys)


def nearest_line(match: str | None) -> str:
    """A last line for an error message: starts with a newline, empty without a match."""
    return f"\nnearest: {match}" if match else ""


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]
