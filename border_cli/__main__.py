"""`python -m border_cli` is `border-train`."""

import sys

from border_cli.cli.train import main

sys.exit(main())
