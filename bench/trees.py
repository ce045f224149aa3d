"""Source trees of different commits, whose command line is run on the same options."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tree:
    """A folder that holds `border_cli/`, `conf/` and `bench/`."""

    path: Path

    def start(self, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Start `python ARGUMENT…` in the folder, importing `border_cli` from it. Its output goes to stdout."""
        env = {**os.environ, "PYTHONPATH": str(self.path)}
        command = [sys.executable, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.path, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def run(self, arguments: Sequence[str]) -> str:
        """Run `python ARGUMENT…` and return its output. Raises SystemExit with the output if it fails."""
        return finish(self.start(arguments))

    def start_training(self, run_dir: Path, options: Sequence[str]) -> subprocess.Popen[str]:
        """Start `border-train OPTION…` with its run in run_dir."""
        return self.start(["-m", "border_cli", *options, f"hydra.run.dir={run_dir}"])

    def train(self, run_dir: Path, options: Sequence[str]) -> None:
        """Run `border-train OPTION…`. Raises SystemExit with its output if it fails."""
        finish(self.start_training(run_dir, options))


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process and return its output. Raises SystemExit with the output if it failed."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args!r} exited with {process.returncode}:\n{output}")
    return output


@contextmanager
def source_tree(name: str) -> Iterator[Tree]:
    """The tree in the folder `name`, or that of the commit `name`, unpacked into a temporary folder.

    Raises SystemExit if it is neither, or if Python imports `border_cli` from elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(name).resolve()
        if not (path / "border_cli").is_dir():
            path = Path(folder).resolve()
            _unpack(name, path)
        tree = Tree(path)
        imported = Path(tree.run(["-c", "import border_cli; print(border_cli.__file__)"]).strip())
        if not imported.is_relative_to(path):
            raise SystemExit(f"{name}: Python imports {imported}")
        yield tree


def _unpack(commit: str, folder: Path) -> None:
    archive = subprocess.run(["git", "archive", "--format=tar", commit], stdout=subprocess.PIPE, check=False)
    if archive.returncode:
        raise SystemExit(f"{commit} is neither a folder with border_cli/ nor a commit")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
