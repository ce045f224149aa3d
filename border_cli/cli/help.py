"""`border-train --help`, from the schema and the files that can be chosen."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from border_cli.cli.command import read_page
from border_cli.cli.compose import Composer, typed_config
from border_cli.config.convert import describe_range, known_keys, to_plain
from border_cli.config.presets import NONE, conf_dir, shipped, tuned_for, variants
from border_cli.config.schema import GROUPS, OptionInfo, TrainConfig

_WIDTH = 100

_MOST_USED = (
    *("n_actors", "seed", "device", "init_from", "plan", "env.id", "env.kwargs"),
    *("agent.lr", "agent.batch_size", "agent.gamma", "buffer.capacity", "buffer.n_step"),
    *("actor_manager.envs_per_actor", "trainer.max_env_steps", "trainer.max_opts", "trainer.max_time"),
    *("trainer.stop_return", "trainer.opt_interval", "trainer.warmup_period", "trainer.eval_interval"),
    *("trainer.save_interval", "evaluator.episodes", "checkpoint.keep"),
)


def help_page(composer: Composer, groups: Sequence[str] = ()) -> str:
    """The page, or all keys of these groups, with the values that the composer's overrides give."""
    merged = composer.merge()
    chosen = merged.hydra.runtime.choices
    plain = to_plain(typed_config(merged, chosen, composer.choices("preset")))
    infos = known_keys(plain)
    values = {key: reduce(getitem, key.split("."), plain) for key in infos}
    composed = (
        f"with the values of agent={chosen['agent']} env={chosen['env']} preset={values['preset.name']}"
    )
    if groups:
        choices = [f"{group}={' | '.join(composer.choices(group))}" for group in groups]
        keys = [key for key in infos if key.partition(".")[0] in groups and not key.endswith(".type")]
        return "\n".join([*choices, "", f"Keys {composed}", *_key_lines(keys, infos, values)])
    page = [read_page("train"), "Groups"]
    for group, section in vars(TrainConfig()).items():
        if group in GROUPS and group != "preset":
            about, _, _ = str(section.__doc__).partition("\n")
            page += _wrapped(f"  {group:<13}  {about}", 17)
            page += _wrapped(f"{'':17}{', '.join(composer.choices(group))}", 17)
    page += [
        "",
        *_preset_lines(composer.choices("preset"), composer.choices("agent")),
        "",
        f"Most used keys {composed}",
    ]
    page += [*_key_lines(_MOST_USED, infos, values), "", read_page("train-flags").format(folder=conf_dir())]
    return "\n".join(page)


def _preset_lines(options: Sequence[str], agents: Sequence[str]) -> list[str]:
    """Which agents have tuned values for which environments, one entry for all environments with the same agents."""
    tuned = tuned_for()
    for name in set(options) - {NONE, *shipped()}:  # those of the user
        longest_first = sorted(agents, key=len, reverse=True)
        agent = next((agent for agent in longest_first if name.startswith(f"{agent}_")), "")
        tuned.setdefault(name.removeprefix(f"{agent}_"), []).append(agent or "any agent")
    together: dict[str, list[str]] = {}
    for env, agents in sorted(tuned.items()):
        together.setdefault(", ".join(sorted(agents)), []).append(env)
    lines = ["Presets: the values tuned for these agents and environments are used unless you type others;"]
    lines += ["preset=none uses none of them"]
    for those, envs in together.items():
        lines += _wrapped(f"  {those}: {', '.join(envs)}", 4)
    return [*lines, f"  only when typed: {', '.join(f'preset={name}' for name in variants())}"]


def _key_lines(
    keys: Sequence[str], infos: Mapping[str, OptionInfo], values: Mapping[str, Any]
) -> Iterator[str]:
    """One entry for each key: its value, unit, meaning, bounds and choices."""
    known = [key for key in keys if key in infos]
    shown = {
        key: values[key] if values.get(key) and isinstance(values[key], str) else json.dumps(values.get(key))
        for key in known
    }
    first, second = max(map(len, known)), min(24, max(map(len, shown.values())))
    for key in known:
        info = infos[key]
        about = f"[{info.unit}] {info.help}" if info.unit else info.help
        if bounds := describe_range(info):
            about += "; " + bounds.replace(" ", "\N{NO-BREAK SPACE}")
        if info.choices:
            about += f" ({' | '.join(info.choices)})"
        lines = _wrapped(f"  {key:<{first}}  {shown[key]:>{second}}  {about}", first + second + 6)
        yield from (line.replace("\N{NO-BREAK SPACE}", " ") for line in lines)


def _wrapped(text: str, indent: int) -> list[str]:
    """Lines of the page's width; the second and the following ones are indented."""
    return textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
