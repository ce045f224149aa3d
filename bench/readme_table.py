"""`make readme`: README's table of agents and environments, from what `border-train --help` lists."""

from __future__ import annotations

from pathlib import Path

from bench.report import markdown, write_between_marks
from border_cli.cli.compose import Composer
from border_cli.config.paths import conf_dir
from border_cli.config.presets import NONE

README = Path(__file__).parents[1] / "README.md"


def table() -> str:
    """The options of the groups agent and env, with what their files say first, and for which pairs there are presets."""
    with Composer([], None) as composer:
        agents, envs, presets = (composer.choices(group) for group in ("agent", "env", "preset"))
    named = [preset for preset in presets if preset != NONE]
    rows = [[f"`{agent}`", _says("agent", agent), _tuned(agent, named)] for agent in agents]
    others = ", ".join(f"`{env}`" for env in envs if env not in ("gym", "atari"))
    return (
        f"{markdown(['`agent=`', 'what it is', 'presets for `env=`'], rows)}\n\n"
        f"Environments by name: {others}; `atari` takes any game of ALE by its id, `gym` any id and any class."
    )


def _says(group: str, option: str) -> str:
    first = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ").split(". ")[0].rstrip(".")


def _tuned(agent: str, presets: list[str]) -> str:
    return ", ".join(preset.removeprefix(f"{agent}_") for preset in presets if preset.startswith(f"{agent}_"))


if __name__ == "__main__":
    write_between_marks(README, f"\n{table()}\n")
