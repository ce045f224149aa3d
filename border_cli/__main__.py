"""`python -m border_cli` is `border-train`."""

import sys

from border_cli.cli.entry import train

sys.exit(train())
