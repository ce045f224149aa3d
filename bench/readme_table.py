"""`make readme`: README's table of agents and environments, from what --help lists, and the table of docs/metrics.md."""

from __future__ import annotations

from pathlib import Path

from bench.report import markdown, write_between_marks
from border_cli.config.presets import conf_dir, tuned_for
from border_cli.config.registry import AGENTS
from border_cli.core.metrics import METRICS

README = Path(__file__).parents[1] / "README.md"
METRICS_PAGE = README.parent / "docs" / "metrics.md"


def table() -> str:
    """Return the table of agents and environments: the first comment of each config file, and the pairs with presets."""
    # Read from the files, because plugins may have registered more in this process.
    agents, envs = (
        sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")) for group in ("agent", "env")
    )
    tuned = tuned_for()
    rows = [
        [f"`{agent}`", _says("agent", agent), ", ".join(env for env in tuned if agent in tuned[env])]
        for agent in agents
    ]
    others = ", ".join(f"`{env}`" for env in envs if env not in ("gym", "atari"))
    return (
        f"{markdown(['`agent=`', 'what it is', 'presets for `env=`'], rows)}\n\n"
        f"Environments by name: {others}; `atari` takes any game of ALE by its id, `gym` takes any gymnasium id and any "
        "environment class by its import path."
    )


def _says(group: str, option: str) -> str:
    first = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()[0]
    return first.removeprefix("# ").split(". ")[0].rstrip(".")


def metrics_table() -> str:
    """Return the table of metrics: unit, meaning, and whether runs with the same seed may differ in it."""
    for agent in AGENTS.values():
        agent.load()  # declares its own metrics
    rows = [
        [f"`{one.name}`", one.unit, one.help, "yes" if one.kind == "clock" else ""]
        for one in sorted(METRICS.values(), key=lambda one: one.name)
    ]
    return markdown(["metric", "unit", "meaning", "depends on timing"], rows)


if __name__ == "__main__":
    write_between_marks(README, f"\n{table()}\n")
    write_between_marks(METRICS_PAGE, f"\n{metrics_table()}\n")
