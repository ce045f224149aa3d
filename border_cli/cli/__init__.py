"""The commands: compose, check, build, run, exit code."""
