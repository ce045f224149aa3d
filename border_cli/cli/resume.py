"""`resume=RUN` and `resume=auto`: go on with a run in its own directory.

A run is resumed with the configuration that stands in its directory, as data, and with what is typed beside `resume`:
Hydra composes nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override

from border_cli.cli import overrides
from border_cli.cli.compose import Composed
from border_cli.config import plugins
from border_cli.config.checks import apply_typed_budget, check, check_effect, check_typed
from border_cli.config.convert import RESUME, to_config
from border_cli.config.resuming import changes, check_changes
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.config.yaml_text import load
from border_cli.core.errors import UsageError
from border_cli.replay.config import PrioritizedConfig
from border_cli.runs import directory, trust
from border_cli.runs.directory import CONFIG_FILE, RUNS, Launch
from border_cli.runs.locate import run_directory
from border_cli.runs.lock import locked
from border_cli.runs.provenance import check_provenance, read_run_id
from border_cli.runtime.signals import StopFlag

AUTO = "auto"


def split(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """What was typed for `resume`, None if nothing was, and the other words. A path may hold what Hydra cannot read."""
    prefix = f"{RESUME}="
    found = [word for word in words if word.lstrip("+").startswith(prefix)]
    if len(found) > 1:
        raise UsageError(f"{found[0]} and {found[1]} are two runs\nallowed: one of them")
    if not found:
        return None, list(words)
    text = found[0].partition("=")[2]
    if not text:
        raise UsageError(
            f"{found[0]} names no run\nallowed: {RESUME}=<run>, {RESUME}={AUTO}, or {RESUME}=null for a new run"
        )
    if text == "null":
        return None, [word for word in words if word is not found[0]]
    return text, [word for word in words if word is not found[0]]


def run_named(text: str, typed: Sequence[Override], argv: Sequence[str]) -> int:
    """Go on with this run. The exit code. Raises BorderError for whatever is refused; the run is then as it was."""
    run_dir = run_directory(Path(text))
    if not trust.is_own(read_run_id(run_dir)):
        directory.check_plain(run_dir)
    data = _stored(run_dir, typed)
    stored = to_config(data)
    config = _with_typed(data, typed)
    _check_env(run_dir, data, config, typed)
    return _run(run_dir, stored, config, overrides.typed_values(typed), argv)


def run_found(run_dir: Path, composed: Composed, typed: dict[str, str], argv: Sequence[str]) -> int:
    """Go on with the run that `resume=auto` has found for this configuration. The exit code."""
    if not trust.is_own(read_run_id(run_dir)):
        directory.check_plain(run_dir)
    stored, config = directory.read_config(run_dir), composed.config
    take_over(stored, config, typed)
    return _run(run_dir, stored, config, typed, argv)


def take_over(stored: TrainConfig, config: TrainConfig, typed: dict[str, str]) -> None:
    """Give a composed configuration what a run has settled when it began."""
    if "checkpoint.replay" not in typed:
        config.checkpoint.replay = stored.checkpoint.replay
    if config.init_from is not None and stored.init_from is not None:
        config.init_from = stored.init_from
    if config.env.action_mask == "auto" and "env.action_mask" not in typed:
        config.env.action_mask = stored.env.action_mask
    own, settled = config.buffer, stored.buffer
    if not isinstance(own, PrioritizedConfig) or not isinstance(settled, PrioritizedConfig):
        return
    if own.beta_opt_steps is None and "buffer.beta_opt_steps" not in typed:
        own.beta_opt_steps = settled.beta_opt_steps


def _run(
    run_dir: Path, stored: TrainConfig, config: TrainConfig, typed: dict[str, str], argv: Sequence[str]
) -> int:
    from border_cli import parts
    from border_cli.checkpoints.contents import CHECKPOINTS
    from border_cli.checkpoints.store import list_steps
    from border_cli.preflight import preflight
    from border_cli.run import train
    from border_cli.runs.resume import check_spec, read_resumed

    wanted = changes(stored, config)
    check_changes(stored, wanted)
    launch = Launch(list(argv), typed)
    with StopFlag() as stop, locked(run_dir):
        check_provenance(run_dir)
        spec = preflight(config, stop, run_dir, goes_on=bool(list_steps(run_dir / CHECKPOINTS)))
        resumed = read_resumed(run_dir, config, wanted, parts.buffer_bytes(config, spec))
        check_spec(resumed, spec)
        return int(train(config, spec, run_dir, launch, stop, resumed).code)


def _stored(run_dir: Path, typed: Sequence[Override]) -> dict[str, Any]:
    """The run's configuration as plain data, once its plugins may be imported and are."""
    data = load(run_dir / CONFIG_FILE)
    if not isinstance(data, dict):
        raise UsageError(
            f"{run_dir / CONFIG_FILE} holds no configuration\nallowed: the {CONFIG_FILE} of a run"
        )
    named = data.get("plugins")
    modules = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    named_by_user = trust.Typed(plugins=overrides.typed_list(typed, "plugins"))
    trust.check_plugins(modules, named_by_user, _is_own_code(run_dir, data, modules))
    plugins.load(modules)
    return data


def _is_own_code(run_dir: Path, data: dict[str, Any], plugin_names: Sequence[str]) -> bool:
    env = to_config({"agent": {"type": "dqn"}, "env": data.get("env", {})}).env
    return trust.is_own(read_run_id(run_dir), trust.code_of(plugin_names, env))


def _check_env(run_dir: Path, data: dict[str, Any], config: TrainConfig, typed: Sequence[Override]) -> None:
    values = overrides.typed_values(typed)
    named = trust.Typed(
        imports=overrides.typed_list(typed, "env.imports"), entry_point=values.get("env.entry_point")
    )
    trust.check_env(config.env, named, _is_own_code(run_dir, data, config.plugins))


def _with_typed(data: dict[str, Any], typed: Sequence[Override]) -> TrainConfig:
    """The configuration with what was typed."""
    overrides.check_single(typed)
    values = overrides.typed_values(typed)
    check_typed(values)
    changed = copy.deepcopy(data)
    for override in typed:
        _set(changed, override)
    config = to_config(changed)
    apply_typed_budget(config, values)
    check(config)
    check_effect(config, values)
    return config


def _set(data: dict[str, Any], override: Override) -> None:
    key = override.key_or_group
    if override.is_hydra_override() or override.is_delete() or override.package is not None:
        raise UsageError(f"resume: {override.input_line} cannot be typed beside it\nallowed: key=value")
    if key in GROUPS:
        raise UsageError(
            f"resume: {key}={override.value()} chooses a group, and a resumed run keeps its own\n"
            f"allowed: single values, such as {key}.<key>=<value>, or a new run with init_from=<run>"
        )
    *path, name = key.split(".")
    section: Any = data
    for step in path:
        section = section.setdefault(step, {}) if isinstance(section, dict) else {}
    if isinstance(section, dict):
        section[name] = override.value()


def find(config: TrainConfig, typed: dict[str, str]) -> Path | None:
    """The run that `resume=auto` goes on with, None where a new one has to be begun."""
    from border_cli.runs.resume import newest_unfinished

    return newest_unfinished(RUNS, config, lambda stored, own: take_over(stored, own, typed))
