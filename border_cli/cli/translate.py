"""The command line that somebody who knows another tool meant: `--algo dqn --env CartPole-v1` is agent=dqn env=cartpole.

Words of other tools are never taken: the error shows the whole command in ours.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from border_cli.config import presets
from border_cli.config.convert import RESUME, all_keys, known_keys, nearest_key, read_number
from border_cli.config.other_tools import known_as, table
from border_cli.config.registry import AGENTS
from border_cli.config.schema import GROUPS, TrainerConfig
from border_cli.core.errors import UsageError

_SWITCHES = ("-m", "--multirun", "--version")
_FLAGS = (*_SWITCHES, "-c", "--cfg", "-cd", "--config-dir")
_UNTOUCHED = ("-h", "--help", "-sc", "--shell-completion")
_OWN_FILES = ("--config-dir", "-cd", "plugins=", "hydra.searchpath=")
"""With these, options and keys may be the user's own."""
_BEGINNINGS = ("hydra", "sweep.", "preset.", "env.kwargs.", f"{RESUME}=", "trust=", "~")
_PAIRS = {"env.kwargs": "env.kwargs.", "# values follow": ""}
"""Options followed by key:value, and the beginning of the keys."""
_ATARI = re.compile(r"(ALE/)?(?P<game>[A-Z]\w*?)(NoFrameskip|Deterministic)?(-v\d+)?")


def check_words(argv: Sequence[str], command: str) -> None:
    """Raise UsageError with the whole command in our words, if some are those of another tool."""
    if any(word.startswith(_UNTOUCHED) for word in argv):
        return
    translation = _Translation(argv)
    if translation.foreign:
        foreign, left_out = translation.foreign, "; ".join(translation.left_out)
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise UsageError(
            f"no settings of {command}: {', '.join(foreign[:3])}{more}",
            nearest=shlex.join([command, *translation.words]) if translation.words else None,
            allowed=f"key=value; left out: {left_out}" if left_out else "key=value",
        )


@dataclass(frozen=True)
class _Word:
    """One setting or flag. target: our key, an entry of other_tools.yaml, None if unknown · typed: as it was typed."""

    target: str | None
    value: str
    typed: str


class _Translation:
    """An argument list in our words.

    words: the list · foreign: what is not ours, as typed · left_out: what has no word here, with the reason.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.words = list[str]()
        self.foreign = list[str]()
        self.left_out = list[str]()
        self._keys = (*GROUPS, *all_keys())
        self._own_files = any(word.startswith(_OWN_FILES) for word in argv)
        read = list(self._read(argv))
        self._typed = {word.target: word.value for word in read}
        self._env = self._environment(self._typed.get("env", "cartpole"))
        self._agent = self._algorithm(self._typed.get("agent", ""))
        for word in read:
            self._add(word)
        keys = [word.partition("=")[0] for word in self.words]
        self.words = [word for i, word in enumerate(self.words) if keys[i] not in keys[i + 1 :]]
        if self.foreign and "agent" not in keys and self._agent != "dqn":
            self.words.insert(0, f"agent={self._agent}")

    # -- reading -------------------------------------------------------------

    def _read(self, argv: Sequence[str]) -> Iterator[_Word]:
        rest = list(argv)
        while rest:
            word = rest.pop(0)
            if word in _FLAGS:
                yield _Word(word, "", word)
                if word not in _SWITCHES and rest:
                    yield _Word(rest[0], "", rest.pop(0))
            elif word.startswith("-"):
                yield from self._read_option(word, rest)
            elif "=" in word:
                key, _, value = word.lstrip("+").partition("=")
                is_ours = word.startswith(_BEGINNINGS) or key in self._keys or self._own_files
                yield _Word(key if is_ours else self._target(key), value, word)
            else:
                yield _Word(self._target_of_bare(word), word, word)

    def _read_option(self, word: str, rest: list[str]) -> Iterator[_Word]:
        """`--key value`, `--key=value`, `--switch`, or `--params key:value …`, whose values are taken from `rest`."""
        name, equals, value = word.lstrip("-").partition("=")
        target = self._target(name)
        if target in _PAIRS:
            while rest and ":" in rest[0]:
                key, _, value = rest[0].partition(":")
                yield _Word(self._target(f"{_PAIRS[target]}{key}"), value, f"{word} {rest.pop(0)}")
            return
        is_switch = target is not None and "=" in target and not target.startswith("#")
        is_value = re.compile(r"true|false" if is_switch else r"[^-=][^=]*|-[\d.]+", re.IGNORECASE)
        if not equals and rest and is_value.fullmatch(rest[0]):
            value = rest.pop(0)
            word = f"{word} {value}"
        yield _Word(target, value, word)

    def _target(self, name: str) -> str | None:
        key = name.replace("-", "_")
        if key.startswith(("env.kwargs.", "sweep.")) or key in self._keys:
            return key
        by_leaf = {full.rpartition(".")[2]: full for full in reversed(self._keys)}
        if (target := known_as(key) or by_leaf.get(key)) is None and key.startswith("env."):
            return None if nearest_key(key, self._keys) else f"env.kwargs.{key.removeprefix('env.')}"
        return target

    def _target_of_bare(self, word: str) -> str | None:
        if _agent(word) or _plain(word) in table()["on_policy"].split():
            return "agent"
        if word in presets.env_ids() or re.search(r"-v\d+$", word):
            return "env"
        target = known_as(word)
        return target if target and target.startswith("#") else None

    # -- meaning -------------------------------------------------------------

    def _add(self, word: _Word) -> None:
        """Add what a word means, or why it means nothing."""
        target = word.target
        if target is None and word.typed.startswith("-"):
            self.left_out.append(f"{word.typed} (there is no such setting)")
            return
        meant = [word.typed] if target in (None, word.typed) else self._meant(word)
        key = meant[0].partition("=")[0] if meant else ""
        if key.startswith("agent.") and key in self._keys and key not in self._agent_keys:
            self.left_out.append(f"{word.typed} (agent={self._agent} has no such setting)")
            meant = []
        self.words += meant
        if " ".join(meant).lstrip("+") != word.typed.lstrip("+"):
            self.foreign.append(word.typed)

    @property
    def _agent_keys(self) -> Any:
        agent = self._agent.partition(",")[0]
        return known_keys({"agent": {"type": agent}}) if agent in AGENTS else self._keys

    def _meant(self, word: _Word) -> list[str]:
        target, value = str(word.target), word.value
        key, _, unit = target.partition(" [")
        if target.startswith("#") or value.endswith(".zip"):
            why = target.removeprefix("# ") if target.startswith("#") else "files of other tools are not read"
            self.left_out.append(f"{word.typed} ({why})")
            return []
        if target in ("env", "agent"):
            if value != self._typed[target]:  # the same key follows, and the last one counts
                return [f"{target}={value}"]
            return self._env if target == "env" else [f"agent={self._agent}"]
        if target == "--config-dir":
            return [target, value]
        if "=" in target:
            is_off = value.lower() in ("false", "0", "no")
            return (["device=cpu"] if target == "device=cuda" else []) if is_off else target.split()
        if key == "env.id" and self._typed.get("env") == "atari" and (game := _ATARI.fullmatch(value)):
            value = f"ALE/{game['game']}-v5" if not game[1] else value
        with contextlib.suppress(ValueError):  # several values, or no number: the schema says what is allowed
            value = self._converted(unit.rstrip("]"), value)
        return [f"{key}={table()['values'].get(key, {}).get(value.lower(), value)}"]

    def _converted(self, unit: str, value: str) -> str:
        """A value in our unit. Raises ValueError for no number."""
        if unit == "gpu":
            return f"cuda:{value}" if value.isdigit() else "cuda"
        if unit == "share of budget":
            return str(round(read_number(value) * self._number("max_env_steps")))
        if unit == "opt steps":
            return str(max(1, round(read_number(value) / self._number("opt_interval"))))
        if unit == "inverse":
            env_steps = read_number(self._typed.get("trainer.opt_interval", "1"))
            opt_steps = read_number(value)
            return f"{env_steps / opt_steps if opt_steps > 0 else 1:g}"
        return value

    def _number(self, name: str) -> float:
        """A number of the trainer: typed, or of the preset, or the default."""
        env = self._env[0].partition("=")[2]
        preset = presets.shipped().get(f"{self._agent}_{env}", {}).get("trainer", {})
        default = preset.get(name, getattr(TrainerConfig(), name))
        return read_number(str(self._typed.get(f"trainer.{name}", default)))

    def _environment(self, name: str) -> list[str]:
        """The words for an environment by its option, its id, or its id in another version."""
        ids = presets.env_ids()
        if self._own_files or name in ids:
            return [f"env={name}"]
        if "," in name and "[" not in name:
            return [
                f"env={','.join(self._environment(one)[-1].removeprefix('env=') for one in name.split(','))}"
            ]
        game = _ATARI.fullmatch(name)
        short = game["game"] if game else name
        for option, env_id in ids.items():
            if short.lower() in (option, re.sub(r"^ALE/|-v\d+$", "", env_id).lower()):
                if env_id.removeprefix("ALE/") != name.removeprefix("ALE/"):
                    self.left_out.append(f"{name} (env={option} is {env_id})")
                return [f"env={option}"]
        if game and (game[1] or game[3]):
            return ["env=atari", f"env.id=ALE/{short}-v5"]
        return ["env=gym", f"env.id={name}"] if re.search(r"-v\d+$", name) else [f"env={name}"]

    def _algorithm(self, name: str) -> str:
        """The agent of this name; for an algorithm that is not here, and without a name, one for the environment."""
        if self._own_files or name in AGENTS:
            return name
        if "," in name:
            return ",".join(map(self._algorithm, name.split(",")))
        if name and _plain(name) not in table()["on_policy"].split():
            return _agent(name) or name
        if name:
            self.left_out.append(f"{name} (on-policy: border-train has off-policy agents only)")
        tuned = presets.tuned_for().get(self._env[0].partition("=")[2], ["dqn"])
        return "dqn" if "dqn" in tuned else tuned[0]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _agent(name: str) -> str | None:
    """Our name of an algorithm: QR-DQN is qrdqn, dqn_atari is dqn; None where there is none."""
    plain = _plain(name)
    candidates = (
        plain,
        plain.replace("_", ""),
        table()["algorithms"].get(plain, ""),
        plain.partition("_")[0],
    )
    return next((name for name in candidates if name in AGENTS), None)
