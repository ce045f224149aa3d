"""`make readme`: README's table of agents and environments, and the tables of docs/metrics.md and docs/keys.md."""

from __future__ import annotations

from pathlib import Path

from bench.report import markdown, write_between_marks
from border_cli.config.convert import as_typed, describe_range, section_keys
from border_cli.config.presets import conf_dir, tuned_for
from border_cli.config.registry import AGENTS, TABLES
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.metrics import METRICS

README = Path(__file__).parents[1] / "README.md"
METRICS_PAGE = README.parent / "docs" / "metrics.md"
KEYS_PAGE = README.parent / "docs" / "keys.md"
KINDS = {"agent": ("dqn", "sac"), "buffer": ("prioritized",), "actor_manager": ("ray",)}
"""Types whose keys are listed; the others of their groups have the same keys or fewer."""


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
        [f"`{metric.name}`", metric.unit, metric.help, "yes" if metric.kind == "clock" else ""]
        for metric in sorted(METRICS.values(), key=lambda metric: metric.name)
    ]
    return markdown(["metric", "unit", "meaning", "depends on timing"], rows)


def keys_page() -> str:
    """Return a table of every group of the configuration, and one of the keys without a group."""
    sections = {"": TrainConfig}
    for group, section in vars(TrainConfig()).items():
        if group in KINDS:
            sections |= {f"{group}={kind}": TABLES[group][kind].config for kind in KINDS[group]}
        elif group in GROUPS and group != "preset":
            sections[group] = type(section)
    tables = []
    for title, cls in sections.items():
        keys = {key: info for key, info in section_keys(cls).items() if "." not in key and key != "type"}
        rows = []
        for key, info in keys.items():
            allowed = " or ".join(info.choices) or describe_range(info)
            unit = f"{info.unit}, {allowed}".strip(", ")
            value = getattr(cls(), key)
            default = "auto" if info.auto and value is None else as_typed(value) or "''"
            rows.append([f"`{key}`", f"`{default}`", unit, info.help.replace("|", "\\|").replace("<", "\\<")])
        prefix = f"`{title}`" if title else "Keys without a group"
        tables.append(f"## {prefix}\n\n{markdown(['key', 'default', 'unit and values', 'meaning'], rows)}")
    return "\n\n".join(tables)


if __name__ == "__main__":
    write_between_marks(KEYS_PAGE, f"\n{keys_page()}\n")
    write_between_marks(README, f"\n{table()}\n")
    write_between_marks(METRICS_PAGE, f"\n{metrics_table()}\n")
