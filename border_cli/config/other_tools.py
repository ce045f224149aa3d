"""What other tools call our settings: the table other_tools.yaml, read when a word is not ours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def table() -> dict[str, Any]:
    """The file: `words`, by ours; `on_policy`; `algorithms`; `values`, by our key."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.safe_load(text)
    return words


@cache
def _by_word() -> dict[str, str]:
    return {word: target for target, words in table()["words"].items() for word in words.split()}


def known_as(word: str) -> str | None:
    """The entry of `words` for a word of another tool, in any spelling; None where there is none."""
    spelled = word.lower().lstrip("-").replace("-", "_").replace(".", "_")
    return _by_word().get(spelled) or _by_word().get(word.lower().rpartition(".")[2].replace("-", "_"))
