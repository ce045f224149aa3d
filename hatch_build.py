"""README.md as a package index shows it: its links lead to the repository that `[project.urls]` names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Makes relative links absolute; without a repository they stay relative, and lead nowhere on an index."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if repository := metadata.get("urls", {}).get("Repository"):
            text = absolute(text, repository.rstrip("/"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, repository: str) -> str:
    """Return Markdown whose relative links lead into a repository, and whose images are its raw files."""
    return _LINK.sub(
        lambda match: f"{match[1]}{match[2]}({repository}/{'raw' if match[1] else 'blob'}/HEAD/{match[3]})",
        text,
    )
