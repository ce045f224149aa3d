"""A hook of mkdocs: formulas of docs/ as MathML, which browsers draw without a script. `mkdocs.yml` names it."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Replace each formula that pymdownx.arithmatex has marked."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    tag, formula = match.groups()
    return convert(html.unescape(formula), display="block" if tag == "div" else "inline")
