"""Translates words of other tools: `--algo dqn --env CartPole-v1` means agent=dqn env=cartpole.

Such words are always refused; the error shows the whole command in border-train's words. other_tools.yaml has the
table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from border_cli.config import presets
from border_cli.config.convert import all_keys, known_keys, nearest_key
from border_cli.config.registry import AGENTS
from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError

_FLAGS = {"-m": 0, "--multirun": 0, "--version": 0, "-c": 1, "--cfg": 1, "-cd": 1, "--config-dir": 1}
"""Our flags, each with the number of its values."""
_OWN_FILES = ("--config-dir", "-cd", "plugins=", "hydra.searchpath=")
"""With these, options and keys may be the user's own."""
_BEGINNINGS = ("hydra", "sweep.", "preset.", "env.kwargs.", "resume=", "trust=", "~")
_VALUES = {
    "recorder.wandb": {"true": "online", "false": "none", "disabled": "none"},
    "device": {"gpu": "cuda", "auto": "cpu"},
}
"""Values of border-train's settings, by their names in other tools."""
_ON_POLICY = "on-policy: border-train has off-policy agents only"
_ATARI = re.compile(r"(ALE/)?(?P<game>[A-Z]\w*?)(NoFrameskip|Deterministic)?(-v\d+)?")


def check_words(argv: Sequence[str], command: str) -> None:
    """Raise UsageError with the whole command in border-train's words, if some words are another tool's."""
    if {"-h", "--help"} & set(argv):
        return
    translation = _Translation(argv)
    if translation.foreign:
        foreign, left_out = translation.foreign, "; ".join(translation.left_out)
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        of_keys = all(re.match(rf"({'|'.join(GROUPS)}|device)=", word) for word in foreign)
        what, allowed = ("values", "see border-train --help") if of_keys else ("settings", "key=value")
        raise UsageError(
            f"unknown {what}: {', '.join(foreign[:3])}{more}",
            nearest=shlex.join([command, *translation.words]) if translation.words else None,
            allowed=f"{allowed}; left out: {left_out}" if left_out else allowed,
        )


@cache
def table() -> dict[str, Any]:
    """other_tools.yaml: `words`, by ours; `on_policy`; `algorithms`."""
    text = Path(__file__).with_name("other_tools.yaml").read_text(encoding="utf-8")
    return cast(dict[str, Any], yaml.safe_load(text))


@cache
def _by_word() -> dict[str, str]:
    return {word: target for target, words in table()["words"].items() for word in words.split()}


class _Translation:
    """An argument list in our words.

    words: the list · foreign: the words of other tools, as typed · left_out: what border-train has no word for, with
    the reason.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        self.words = list[str]()
        self.foreign = list[str]()
        self.left_out = list[str]()
        self._keys = (*GROUPS, *all_keys())
        self._own_files = any(word.startswith(_OWN_FILES) for word in argv)
        self._any_game = "env=atari" in argv
        rest = list(argv)
        while rest:
            self._translate(rest)
        if self.foreign:
            ours = dict(word.split("=", 1) for word in self.words if "=" in word)
            tuned = presets.tuned_for().get(ours.get("env", ""), ["dqn"])
            # the oldest agents are those that other tools' commands mean
            fitting = next((f"agent={name}" for name in ("dqn", "sac") if name in tuned), f"agent={tuned[0]}")
            if "agent" not in ours and fitting != "agent=dqn":
                self.words.insert(0, fitting)
            self.words = [fitting if word == "agent=" else word for word in self.words]
            agent = ours.get("agent") or fitting.removeprefix("agent=")
            keys = known_keys({"agent": {"type": agent}}) if agent in AGENTS else self._keys
            # two words of another tool may mean the same key: the last one counts
            last = {word.partition("=")[0] if "=" in word else str(i): i for i, word in enumerate(self.words)}
            self.left_out += [
                f"{w} (a second time)" for i, w in enumerate(self.words) if i not in last.values()
            ]
            self.words = [word for i, word in enumerate(self.words) if i in last.values()]
            for word in list(self.words):
                key = word.partition("=")[0]
                if key in self._keys and key not in keys and key not in GROUPS:  # other agents have it
                    self.left_out.append(f"{word} (agent={agent} has no such setting)")
                    self.words.remove(word)

    def _translate(self, rest: list[str]) -> None:
        """Take the first of the remaining words, with its value, and add what it means."""
        word = rest.pop(0)
        if word in _FLAGS or word.startswith(_BEGINNINGS):
            n_values = _FLAGS.get(word, 0)
            self.words += [word, *rest[:n_values]]
            del rest[:n_values]
            return
        # agent dqn, agent = dqn, agent =dqn
        if word in GROUPS and rest and re.fullmatch(r"=?(?!-)[^=]*", rest[0]):
            typed = [word, rest.pop(0)]
            if typed[1] == "=" and rest and "=" not in rest[0]:
                typed.append(rest.pop(0))
            self.foreign.append(" ".join(typed))
            self.words += self._meant(word, typed[-1].lstrip("="), self.foreign[-1])
            return
        name, equals, value = word.lstrip("-+").partition("=")
        is_option = word.startswith("-")
        target = self._target(name, is_bare=not equals and not is_option)
        if is_option and not equals:
            is_unused = target is not None and target.startswith("#")
            is_switch = target is not None and "=" in target and not is_unused
            is_value = re.compile(r"true|false" if is_switch else r"[^-=][^=]*|-[\d.]+", re.IGNORECASE)
            while rest and is_value.fullmatch(rest[0]) and (is_unused or not value):
                value = rest.pop(0)
                word = f"{word} {value}"
        elif not equals:
            value = word
        if is_option and target is None:
            self.left_out.append(f"{word} (there is no such setting)")
            return
        meant = self._meant(target, value, word)
        self.words += meant
        if " ".join(meant) != word.lstrip("+"):
            self.foreign.append(word)

    def _target(self, name: str, is_bare: bool) -> str | None:
        """Our key for a name, or an entry of the table; None for a name that is unknown. is_bare: it has no value."""
        if is_bare:
            if _agent(name) != name or name in AGENTS:
                return "agent"
            if name in presets.env_ids() or re.search(r"-v\d+$", name):
                return "env"
            target = _by_word().get(name.lower())
            return target if target and target.startswith("#") else None
        key = name.replace("-", "_")
        if key.startswith(("env.kwargs.", "sweep.")) or key in self._keys:
            return key
        if self._own_files and name == key:
            return None
        by_leaf = {full.rpartition(".")[2]: full for full in reversed(self._keys)}
        spelled = key.lower()
        known = _by_word().get(spelled.replace(".", "_")) or _by_word().get(spelled.rpartition(".")[2])
        if (target := known or by_leaf.get(key)) is None and key.startswith("env."):
            return None if nearest_key(key, self._keys) else f"env.kwargs.{key.removeprefix('env.')}"
        return target

    def _meant(self, target: str | None, value: str, typed: str) -> list[str]:
        if target is None or typed == f"{target}=":  # composing names what is wrong with our own key
            return [typed.lstrip("+")]
        if why := _why_not(target, value):
            self.left_out.append(f"{typed} ({why})")
            return []
        if "=" in target:
            return target.split()
        if target == "env.kwargs" and re.match(r"\w+:", value):
            return [f"{target}.{value.replace(':', '=', 1)}"]
        if target == "--config-dir":
            return [target, value]
        if target == "env":
            words = [self._environment(name) for name in value.split(",") if name]
            others = ",".join(word[-1].removeprefix("env=") for word in words)
            return words[0] if len(words) == 1 else [f"env={others}"]
        if target == "agent":
            typed_names = list(filter(None, value.split(",")))
            names = [name if self._own_files or name in AGENTS else _agent(name) for name in typed_names]
            self.left_out += [f"{name} ({_ON_POLICY})" for name in typed_names if _agent(name) == ""]
            return [f"agent={','.join(names)}"]
        game = _ATARI.fullmatch(value) if target == "env.id" and self._any_game else None
        if game and not game[1]:
            value = f"ALE/{game['game']}-v5"
        return [f"{target}={_VALUES.get(target, {}).get(value.lower(), value)}"]

    def _environment(self, name: str) -> list[str]:
        """The words for an environment by its option, its id, or its id in another version."""
        ids = presets.env_ids()
        if self._own_files or name in ids:
            return [f"env={name}"]
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


def _why_not(target: str, value: str) -> str:
    """Why a word is left out; empty if it has a meaning."""
    if target.startswith("#"):
        return target.removeprefix("# ")
    if value.endswith(".zip"):
        return "files of other tools are not read"
    if "=" in target:
        return "it is off by default" if value.lower() in ("false", "0", "no") else ""
    return "" if value else "the value is missing"


def _agent(name: str) -> str:
    """Our name of an algorithm: QR-DQN is qrdqn, dqn_atari is dqn. Empty for one on policy; an unknown one as it is."""
    plain = name.lower().replace("-", "_")
    if plain in table()["on_policy"].split():
        return ""
    known = (plain, plain.replace("_", ""), table()["algorithms"].get(plain, ""), plain.partition("_")[0])
    return next((agent for agent in known if agent in AGENTS), name)
