"""`make readme`: README's table of agents, and what docs/ generates: docs/reference/, docs/agents/ and the
words of other tools in docs/coming-from.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import agent_pages
from bench.report import markdown, write_between_marks
from bench.results import _all_stored
from border_cli.cli import translate
from border_cli.cli.compose import Composer
from border_cli.cli.entry import read_page
from border_cli.cli.help import help_page
from border_cli.config.convert import as_typed, describe_range, known_keys
from border_cli.config.presets import conf_dir, shipped
from border_cli.config.registry import AGENTS, TABLES
from border_cli.config.schema import OptionInfo, TrainConfig
from border_cli.core.metrics import METRICS

README = Path(__file__).parents[1] / "README.md"
DOCS = README.parent / "docs"
REFERENCE = DOCS / "reference"
KINDS = {
    "agent-dqn": ("agent", "dqn"),
    "agent-sac": ("agent", "sac"),
    "agent-flashsac": ("agent", "flashsac"),
    "agent-dsac": ("agent", "dsac"),
    "buffer": ("buffer", "prioritized"),
    "actor_manager": ("actor_manager", "ray"),
}
"""Pages of keys by their name: the group, and the type whose keys are listed. The others have the same keys or fewer."""
PLAIN = ("env", "trainer", "evaluator", "recorder", "checkpoint")
"""Groups whose types all have the same keys."""


BOXED = ("sac", "td3", "tqc", "crossq", "rsac", "flashsac")
"""Agents for a box of actions."""
HERE = ("reproduced here", "measured here")
"""Columns of README's table, by the status of a preset; the last column has all others."""


def table() -> str:
    """Return the table of agents: their action space, and the environments of their presets by status."""
    known = agent_pages.statuses(_all_stored(), agent_pages.read_published())
    rows = []
    for agent in AGENTS:
        envs: dict[str, list[str]] = {status: [] for status in (*HERE, "")}
        for (env, other), status in known.items():
            if other == agent:
                envs[status if status in HERE else ""].append(env)
        actions = "Box" if agent in BOXED else "Discrete" if agent == "r2d2" else "Discrete, MultiDiscrete"
        page = f"[`{agent}`](docs/agents/{agent}.md)"
        rows.append([page, actions, *(_environments(agent, names) for names in envs.values())])
    return markdown(["`agent=`", "actions", *HERE, "preset, not run in full here"], rows)


def _environments(agent: str, names: Sequence[str]) -> str:
    """Names of environments; two Atari games or more are counted."""
    atari = [env for env in names if shipped()[f"{agent}_{env}"]["preset"]["env_id"].startswith("ALE/")]
    if len(atari) < 2:
        return ", ".join(names) or "–"
    return ", ".join([*(env for env in names if env not in atari), f"{len(atari)} Atari games"])


def metrics_table() -> str:
    """Return the table of metrics: unit, meaning, and whether runs with the same seed may differ in it."""
    for agent in AGENTS.values():
        agent.load()  # declares its own metrics
    rows = [
        [f"`{metric.name}`", metric.unit, metric.help, "yes" if metric.kind == "clock" else ""]
        for metric in sorted(METRICS.values(), key=lambda metric: metric.name)
    ]
    return markdown(["metric", "unit", "meaning", "depends on timing"], rows)


def keys_of_class(cls: type) -> str:
    """Return the table of a section's keys."""
    rows = []
    for key, info in _keys(cls).items():
        allowed = " or ".join([*info.choices, *(["module:Class"] if info.path else [])]) or describe_range(
            info
        )
        unit = f"{info.unit}, {allowed}".strip(", ")
        rows.append([f"`{key}`", f"`{_default(cls, key)}`", unit, _plain(info.help)])
    return markdown(["key", "default", "unit and values", "meaning"], rows)


def keys_of_kind(group: str, kind: str) -> str:
    """Return the table of a type's keys, and what is different in the other types of its family."""
    cls = TABLES[group][kind].config
    differences = []
    for name, entry in TABLES[group].items():
        other = entry.config
        if other is not cls and (issubclass(other, cls) or issubclass(cls, other)):
            shared = [key for key in _keys(cls) if key in _keys(other)]
            words = [
                f"`{group}.{key}={_default(other, key)}`"
                for key in shared
                if _default(other, key) != _default(cls, key)
            ]
            missing = [f"`{key}`" for key in _keys(cls) if key not in shared]
            if missing:
                words.append(f"without {', '.join(missing)}")
            differences.append(f"- `{group}={name}`: {', '.join(words)}")
    parts = [keys_of_class(cls), "What is different with", "\n".join(differences)]
    return "\n\n".join(parts if differences else parts[:1])


def _keys(cls: type) -> dict[str, OptionInfo]:
    return {key: info for key, info in known_keys({}, cls).items() if "." not in key and key != "type"}


def _default(cls: type, key: str) -> str:
    value = getattr(cls(), key)
    return "auto" if known_keys({}, cls)[key].auto and value is None else as_typed(value) or "''"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def help_pages() -> str:
    """Return the help of each command as it is printed."""
    folder = f"{conf_dir()}"
    pages = {
        "border-train --help": help_page(Composer([])).replace(folder, "<the folder of the config files>")
    }
    pages["border-train"] = read_page("train-short")
    pages |= {f"border-{name} --help": read_page(name) for name in ("eval", "report", "export", "bench")}
    return "\n\n".join(f"## `{command}`\n\n```text\n{page.strip()}\n```" for command, page in pages.items())


def words_table() -> str:
    """Return the tables of what other tools call border-train's settings."""
    words = translate.table()
    meant = {target: _listed(names) for target, names in words["words"].items()}
    settings = {t: names for t, names in meant.items() if "=" not in t and not t.startswith(("#", "-"))}
    switches = {t: names for t, names in meant.items() if t not in settings and not t.startswith("#")}
    without = {t.removeprefix("# "): names for t, names in meant.items() if t.startswith("#")}
    algorithms = [[f"`{theirs}`", f"`agent={ours}`"] for theirs, ours in words["algorithms"].items()]
    algorithms.append([_listed(words["on_policy"]), "none: on-policy"])
    theirs = "in other tools"
    parts = [
        "### Settings with the same meaning",
        markdown([theirs, "in border-train"], [[names, f"`{t}`"] for t, names in settings.items()]),
        "### Switches",
        markdown([theirs, "in border-train"], [[names, f"`{t}`"] for t, names in switches.items()]),
        "### Without a setting of the same meaning",
        markdown([theirs, "instead"], [[names, _plain(why)] for why, names in without.items()]),
        "### Algorithms",
        markdown([theirs, "in border-train"], algorithms),
    ]
    return "\n\n".join(parts)


def _listed(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split())


def main() -> None:
    """Write all of them."""
    write_between_marks(README, f"\n{table()}\n")
    write_between_marks(REFERENCE / "metrics.md", f"\n{metrics_table()}\n")
    write_between_marks(REFERENCE / "commands.md", f"\n{help_pages()}\n")
    write_between_marks(DOCS / "coming-from.md", f"\n{words_table()}\n")
    keys = {"index": keys_of_class(TrainConfig)}
    keys |= {name: keys_of_class(type(getattr(TrainConfig(), name))) for name in PLAIN}
    keys |= {name: keys_of_kind(*kind) for name, kind in KINDS.items()}
    for name, text in keys.items():
        write_between_marks(REFERENCE / "keys" / f"{name}.md", f"\n{text}\n")
    agent_pages.write_pages(_all_stored())


if __name__ == "__main__":
    main()
