"""`border-train --help`, and shell completion (`-sc install=bash`), from the schema and the files that can be chosen.

Completion imports neither Hydra nor torch, because a person waits for it.
"""

from __future__ import annotations

import glob
import io
import itertools
import json
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import Field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Any

from border_cli.cli.entry import command, read_page, show
from border_cli.config.convert import describe_range, known_fields, known_keys, nearest_key, to_plain
from border_cli.config.presets import NONE, conf_dir, env_ids, shipped, tuned_for
from border_cli.config.registry import TABLES, import_installed_plugins
from border_cli.config.schema import GROUPS, OptionInfo, TrainConfig
from border_cli.core.errors import UsageError

if TYPE_CHECKING:
    from border_cli.cli.compose import Composer

_WIDTH = 100

_MOST_USED = (
    *("n_actors", "seed", "device", "init_from", "plan", "env.id", "env.kwargs"),
    *("agent.lr", "agent.batch_size", "agent.gamma", "buffer.capacity", "buffer.n_step"),
    *("actor_manager.envs_per_actor", "trainer.max_env_steps", "trainer.max_opts", "trainer.max_time"),
    *("trainer.stop_return", "trainer.opt_interval", "trainer.warmup_period", "trainer.eval_interval"),
    *("trainer.save_interval", "evaluator.episodes", "checkpoint.keep"),
)
_FLAGS = ("--help", "--version", "--multirun", "--cfg", "--config-dir")
_BOOLEAN = ("true", "false")
_BESIDE = {
    "sweep.slots": ("auto",),
    "sweep.retry": _BOOLEAN,
    "sweep.new": _BOOLEAN,
    "trust": _BOOLEAN,
    "device": ("cpu", "cuda", "mps"),
    "hydra.run.dir": (),
    "hydra/launcher": ("border", "border_ray"),
    "hydra/sweeper": ("border_optuna",),
}
"""Values of what the schema does not describe."""
_PATHS = ("resume", "init_from", "hydra.run.dir", "hydra.sweep.dir")


def help_page(composer: Composer, topics: Sequence[str] = ()) -> str:
    """The page, or these keys and all keys of these groups, with the values that the composer's overrides give."""
    from border_cli.cli.compose import typed_config  # not earlier: completion imports no Hydra

    merged = composer.merge()
    chosen = merged.hydra.runtime.choices
    plain = to_plain(typed_config(merged, chosen, composer.choices("preset")))
    infos = known_keys(plain)
    values = {key: reduce(getitem, key.split("."), plain) for key in infos}
    composed = (
        f"with the values of agent={chosen['agent']} env={chosen['env']} preset={values['preset.name']}"
    )
    shown = [key for key in infos if not key.endswith(".type")]
    for topic in topics:
        if topic not in GROUPS and topic not in shown:
            match = nearest_key(topic, [*GROUPS, *shown])
            raise UsageError(
                f"--help {topic}: there is no such group, and no such key {composed}",
                nearest=match and f"--help {match}",
                allowed=GROUPS,
            )
    if topics:
        choices = [f"{group}={' | '.join(composer.choices(group))}" for group in topics if group in GROUPS]
        keys = [key for key in shown if {key, key.partition(".")[0]} & set(topics)]
        head = [*choices, *([""] if choices else []), f"Keys {composed}"]
        return "\n".join([*head, *_key_lines(keys, infos, values)])
    page = [read_page("train"), "Groups"]
    for group, section in vars(TrainConfig()).items():
        if group in GROUPS and group != "preset":
            about, _, _ = str(section.__doc__).partition("\n")
            page += _wrapped(f"  {group:<13}  {about}", 17)
            page += _wrapped(f"{'':17}{', '.join(composer.choices(group))}", 17)
    page += ["", *_preset_lines(composer.choices("preset"), composer.choices("agent")), ""]
    page += [f"Most used keys {composed}", *_key_lines(_MOST_USED, infos, values), ""]
    page.append(read_page("train-flags").format(folder=conf_dir()))
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
    lines = ["Presets: values tuned for these agents and environments, used unless you type preset=none"]
    for those, envs in together.items():
        lines += _wrapped(f"  {those}: {', '.join(envs)}", 4)
    used = {f"{agent}_{env}" for env, agents in tuned_for().items() for agent in agents}
    others = ", ".join(name for name in shipped() if name not in used)
    return [*lines, *_wrapped(f"  only when typed, as preset=: {others}", 4)]


def _key_lines(
    keys: Sequence[str], infos: Mapping[str, OptionInfo], values: Mapping[str, Any]
) -> Iterator[str]:
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


# -- completion ----------------------------------------------------------


@command
def complete(argv: Sequence[str]) -> None:
    """The flag -sc of border-train and border-bench: set up completion in a shell, or answer one, by COMP_LINE."""
    action, _, shell = " ".join(argv[1:]).partition("=")
    if action not in ("install", "uninstall", "query") or shell not in ("bash", "zsh", "fish"):
        shells = [f"-sc install={shell}" for shell in ("bash", "zsh", "fish")]
        raise UsageError("-sc sets up completion in a shell", allowed=shells)
    if action == "query":
        import_installed_plugins()
        show("\n".join(suggestions(os.environ.get("COMP_LINE", ""))))
    else:
        from hydra._internal.hydra import Hydra

        with redirect_stdout(io.StringIO()) as script:
            getattr(Hydra.get_shell_to_plugin_map(None)[shell][0], action)()
        show(script.getvalue())


def suggestions(line: str) -> list[str]:
    """What the last word of a command line may become, sorted as declared."""
    *before, word = line.split(" ")
    typed = dict(typed_word.split("=", 1) for typed_word in before if "=" in typed_word)
    folders = [Path(b) for a, b in itertools.pairwise(before) if a in ("-cd", "--config-dir")]
    key, equals, value = word.partition("=")
    if word.startswith("-"):
        options: Iterable[str] = _FLAGS
    elif equals:
        head, comma, last = value.rpartition(",")
        options = [f"{key}={head}{comma}{option}" for option in _values(key, last, typed, folders)]
    else:
        names = (*GROUPS, *_fields(typed), *_BESIDE, "resume")
        keys = [f"{name}=" for name in names if ("." in name) == ("." in key)]
        options = keys if "." in key else [*keys, *(f"{group}." for group in (*GROUPS, "sweep", "hydra.run"))]
    return [option for option in dict.fromkeys(options) if option.startswith(word)]


def _values(key: str, start: str, typed: Mapping[str, str], folders: Sequence[Path]) -> Iterable[str]:
    if key in GROUPS:
        files = [f for root in (conf_dir(), *folders) for f in (root / key).glob("*.yaml")]
        options = sorted({*(file.stem for file in files), *TABLES.get(key, ())})
        beginning, part = (typed.get("agent", ""), typed.get("env", "")) if key == "preset" else ("", "")
        return [name for name in options if name.startswith(beginning) and part in name]
    if key in _PATHS:
        return [*(["auto"] if key == "resume" else []), *sorted(glob.glob(f"{glob.escape(start)}*/"))]  # noqa: PTH207 - "./" is kept
    if key == "env.id":
        return filter(None, env_ids().values())
    field = _fields(typed).get(key)
    if key in _BESIDE or field is None:
        return _BESIDE.get(key, ())
    info = field.metadata["option"]
    others = ["auto"] if info.auto else ["null"] if "None" in str(field.type) else []
    return [*(_BOOLEAN if field.type == "bool" else info.choices), *others]


def _fields(typed: Mapping[str, str]) -> dict[str, Field[Any]]:
    """Every key with its declaration; the typed option of a group decides its keys."""
    chosen = ({"agent": "dqn"} | dict(typed)).items()
    data = {group: {"type": name} for group, name in chosen if name in TABLES.get(group, ())}
    return {key: field for key, field in known_fields(data).items() if not key.endswith(".type")}
