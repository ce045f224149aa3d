"""The page of `border-train --help`, written from the schema and from the files that can be chosen."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from border_cli.config.convert import describe_range, known_keys
from border_cli.config.options import OptionInfo
from border_cli.config.paths import conf_dir
from border_cli.config.registry import AGENTS
from border_cli.config.schema import TrainConfig

_WIDTH = 110
_MOST_USED = (
    "n_actors",
    "seed",
    "device",
    "init_from",
    "env.id",
    "env.kwargs",
    "agent.lr",
    "agent.batch_size",
    "agent.gamma",
    "buffer.capacity",
    "buffer.n_step",
    "actor_manager.envs_per_actor",
    "trainer.max_env_steps",
    "trainer.max_opts",
    "trainer.max_time",
    "trainer.stop_return",
    "trainer.opt_interval",
    "trainer.warmup_period",
    "trainer.eval_interval",
    "trainer.save_interval",
    "evaluator.episodes",
    "checkpoint.keep",
    "plan",
)

_GROUPS = {
    "agent": "what learns",
    "env": "what it learns in; env=gym takes any gymnasium id",
    "preset": "tuned values; picked by agent and env, what you type wins",
    "trainer": "actors in their own processes, or one in the learner's thread",
    "buffer": "what is remembered",
    "actor_manager": "where actors run",
    "evaluator": "how the model is judged: by the learner itself, or beside it",
    "recorder": "where metrics go",
    "checkpoint": "what is kept",
}

_HEAD = """\
border-train trains an agent and writes everything about it to runs/<date>/<time>_<agent>_<env>/.

  border-train [group=option …] [key=value …] [flags]

Examples
  border-train agent=dqn env=cartpole n_actors=8
  border-train env=gym env.id=Acrobot-v1 trainer.max_env_steps=100000 agent.hidden=[128,128]
  border-train -m agent=dqn env=cartpole,lunarlander seed=1,2,3
  border-train agent=dqn env=cartpole n_actors=8 plan=true
  border-train resume=runs/latest
  border-train agent=dqn env=cartpole resume=auto     resume the unfinished run of this configuration, or begin one
"""

_FLAGS = """\
Flags
  -m, --multirun          one run for each combination of the values separated by commas
  -c, --cfg job           show the checked configuration and leave; -p trainer shows one part of it
  -cd, --config-dir DIR   take group files of your own, such as DIR/env/mine.yaml for env=mine
  -i, --info [WHAT]       how Hydra put the configuration together: defaults, searchpath, plugins …
  -sc install=bash        complete groups and keys in the shell: eval "$(border-train -sc install=bash)"
  --hydra-help            Hydra's own flags and groups
  -h, --help  --version

Every key with its meaning stands in the files below {folder}
--cfg job shows the values of a run.
"""


def help_page(options: Mapping[str, Sequence[str]], agent: str = "dqn") -> str:
    """The page. options: what each config group offers; agent: whose defaults to show."""
    return "\n".join((_HEAD, _groups(options), _keys(agent), _FLAGS.format(folder=conf_dir())))


def _groups(options: Mapping[str, Sequence[str]]) -> str:
    first = max(map(len, _GROUPS))
    indent = " " * (first + 4)
    body = []
    for group, meaning in _GROUPS.items():
        names = textwrap.wrap(
            ", ".join(options[group]), _WIDTH, initial_indent=indent, subsequent_indent=indent
        )
        body += [f"  {group:<{first}}  {meaning}", *names]
    return "\n".join(["Groups", *body, ""])


def _keys(agent: str) -> str:
    infos = known_keys({"agent": {"type": agent}})
    rows = [(key, _default(key, agent), _about(infos[key])) for key in _MOST_USED if key in infos]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    body = [f"  {key:<{first}}  {default:>{second}}  {about}" for key, default, about in rows]
    return "\n".join(
        [
            f"Most used keys, with the defaults of agent={agent} and preset=none; a preset changes many of them",
            *body,
            "",
        ]
    )


def _about(info: OptionInfo) -> str:
    unit = f"[{info.unit}] " if info.unit else ""
    bounds = describe_range(info)
    return f"{unit}{info.help}{f'; {bounds}' if bounds else ''}"


def _default(key: str, agent: str) -> str:
    section, _, name = key.rpartition(".")
    classes: dict[str, Any] = {field.name: field.default_factory for field in dataclasses.fields(TrainConfig)}
    classes |= {"": TrainConfig, "agent": AGENTS[agent].config}
    return _shown(getattr(classes[section](), name))


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if value != "" else '""'
