"""`border-export`: write the policy of a run for other programs, with the preprocessing of its observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from border_cli.cli.entry import command, show
from border_cli.cli.eval import find_model
from border_cli.cli.overrides import Parser, typed_names
from border_cli.config.schema import option
from border_cli.core.errors import ResourceError, UsageError
from border_cli.run import load
from border_cli.run.directory import DISK_FULL, shown


@dataclass
class _Settings:
    """The settings of border-export."""

    format: str = option("numpy", "what to write", choices=("onnx", "numpy"))
    out: str | None = option(None, "the folder to write to")
    checkpoint: str | None = option(None, "best, last, or an opt step")
    debug: bool = option(False, "show tracebacks")
    trust: bool = option(False, "import the code that the run names")


@command
def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = Parser("border-export", _Settings, ("plugins=",))
    flags, paths, overrides = parser.read_paths(argv)
    if parser.answers(flags):
        return
    named = typed_names(overrides).get("plugins", ())
    located, saved = find_model(paths, flags.checkpoint, flags.trust)
    model = saved.description
    load.import_plugins(model, named, flags.trust)
    policy = load.make_policy(saved, 0)
    from border_cli.export.write import write_policy

    if flags.out:
        folder = Path(flags.out)
        if (folder / "README.md").exists() and not list(folder.glob("policy.*")):
            raise UsageError(f"out={folder} has a README.md of something else", allowed="out=<a new folder>")
    else:
        folder = (located.run_dir or located.path) / "export" / flags.format
    env = load.stored_config(model).env
    title = f"{model.agent['type']} on {env.name}, opt step {saved.info.version:,}"
    in_info = env.action_mask == "info"
    try:
        files = write_policy(policy, model.spec, folder, flags.format, title, in_info)
    except OSError as e:
        kind = ResourceError if e.errno in DISK_FULL else UsageError
        raise kind(f"{folder} cannot be written: {e.strerror or e}", allowed="out=<another folder>") from e
    show("\n".join(["written", *(f"  {shown(path.absolute())}" for path in files)]))
