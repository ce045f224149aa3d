"""Where the package finds its own files."""

from __future__ import annotations

from pathlib import Path

from border_cli.core.errors import BorderError

_PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir() -> Path:
    """The folder of the config groups: inside the package when installed, beside it in a checkout.

    Raises BorderError when it is in neither place: the installation is broken.
    """
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise BorderError(
        f"conf/train.yaml is not where it should be, in or beside {_PACKAGE}\ninstall border-cli again"
    )
