"""A trained policy that acts with numpy alone. `border-export` copies this file beside the weights as policy.py.

    from policy import load
    policy = load("folder of policy.json and policy.npz")
    action = policy(observation)

It uses nothing but numpy and the standard library, so it can be copied to any machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def load(folder: str | Path = Path(__file__).parent) -> Policy:
    """The policy in a folder."""
    folder = Path(folder)
    description = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    with np.load(folder / "policy.npz", allow_pickle=False) as arrays:
        return Policy(description, dict(arrays))


class Policy:
    """Maps observations to actions, as `border_cli.load(run).sample` does.

    Attributes:
        inputs: name, path, shape and dtype of each part of an observation, without the batch dimension. The path holds the
            keys that lead to the part in a Dict or Tuple observation.
    """

    def __init__(self, description: dict[str, Any], arrays: dict[str, Any]) -> None:
        self.inputs = description["inputs"]
        self._description = description
        self._arrays = arrays
        self._states: dict[int, Any] = {}  # of the memory of a recurrent network, by row of the batch

    def begin_episode(self, row: int = 0) -> None:
        """Forget what a recurrent network remembers of the environment whose observations are this row of the batches.

        Call it after each reset. Without a memory it does nothing.
        """
        self._states.pop(row, None)

    def __call__(self, observation: Any, action_mask: Any = None) -> Any:
        """The action for an observation, or the actions for a batch, as the environment takes them.

        Args:
            observation: as the environment gives it (an array, an int, a dict or a tuple), or a batch: the same with one
                more dimension in front of each array. Stacked observations are given as a stack, the newest last.
            action_mask: info["action_mask"], where the environment's info says which actions are allowed; None: all are.

        Raises:
            ValueError: for a part of another shape, and for an action mask where the model has none.
        """
        if self._description["mask_in_info"]:
            observation = {"obs": observation, "action_mask": action_mask}
        elif action_mask is not None:
            raise ValueError("this policy was trained without masks in the info of its environment")
        parts, single = {}, set()
        for part in self.inputs:
            value, shape = observation, tuple(part["shape"])
            for key in part["path"]:
                value = value[key]
            if value is None:  # all actions are allowed
                continue
            rows = np.asarray(value)
            if shape not in (rows.shape, rows.shape[1:]):
                raise ValueError(
                    f"{part['name']} has shape {rows.shape}; expected: {shape}, or (B, ...) for a batch"
                )
            single.add(rows.shape == shape)
            parts[part["name"]] = (rows[None] if rows.shape == shape else rows).astype(part["dtype"])
        if len(single) > 1:
            raise ValueError("some parts of the observation are a batch, others are not")
        actions = self._actions(parts)
        return actions[0] if single == {True} else actions

    def _actions(self, parts: dict[str, Any]) -> Any:
        """(B, ...) for each part of an observation → (B, ...) actions."""
        outputs, action = self._network(parts), self._description["action"]
        if self._description["kind"] == "values":
            if self._description["head"] == "categorical":  # (B, n, k) logits → (B, n) expected returns
                p = np.exp(outputs - outputs.max(-1, keepdims=True))
                values = (p / p.sum(-1, keepdims=True)) @ self._arrays["atoms"]
            else:
                values = outputs.mean(-1)
            if (mask := parts.get(self._description["mask"])) is not None:
                values = np.where(mask == 0, np.float32(-np.inf), values)
            return (values.argmax(1) + action["start"]).astype(action["dtype"])
        scaled = self._arrays["action/middle"] + self._arrays["action/half_range"] * np.tanh(outputs)
        scaled = np.clip(scaled, self._arrays["action/low"], self._arrays["action/high"])
        if np.dtype(action["dtype"]).kind in "iu":
            scaled = np.rint(scaled)
        return scaled.reshape(-1, *action["shape"]).astype(action["dtype"])

    def _network(self, obs: dict[str, Any]) -> Any:
        d = self._description
        x = np.concatenate([self._encoded(part, obs[part["name"]]) for part in d["encoder"]], axis=1)
        x = self._feed("trunk", x, relu_at_end=True)
        if "gru/weight_x" in self._arrays:
            x = self._feed("hidden", self._remembered(x), relu_at_end=True)
        if d["kind"] == "action":
            return self._feed("out", x)[:, : d["action_size"]].clip(*d["clip"])
        if d["levels"]:
            # Quantile levels (i + 1/2)/k, embedded as ReLU of a linear layer of cos(π·j·τ), j = 1 … (IQN)
            tau = (np.arange(d["levels"], dtype=np.float32) + np.float32(0.5)) / np.float32(d["levels"])
            j = np.arange(1, self._arrays["levels/0/weight"].shape[0] + 1)
            x = x[:, None] * self._feed(
                "levels", np.cos(np.float32(np.pi) * j * tau[:, None]).astype(np.float32), True
            )
        out = self._feed("top", x)
        out = out.reshape(*out.shape[:-1], d["actions"], -1)
        if "value/0/weight" in self._arrays:  # dueling: Q = V + A - mean of A
            out = self._feed("value", x)[..., None, :] + out - out.mean(-2, keepdims=True)
        return out[..., 0].swapaxes(1, 2) if d["levels"] else out

    def _remembered(self, x: Any) -> Any:
        """(B, n_in) → (B, units), the states of the memory, a GRU, after this time step; zeros before the first."""
        of_x, of_state, bias_x, bias_state = (
            self._arrays[f"gru/{name}"] for name in ("weight_x", "weight_h", "bias_x", "bias_h")
        )
        units = len(of_state)
        state = np.stack([self._states.get(i, np.zeros(units, np.float32)) for i in range(len(x))])
        a, b = x @ of_x + bias_x, state @ of_state + bias_state
        gates = 1.0 / (1.0 + np.exp(-(a + b)[:, : 2 * units]))
        new = np.tanh(a[:, 2 * units :] + gates[:, :units] * b[:, 2 * units :])
        state = new + gates[:, units:] * (state - new)
        self._states.update(enumerate(state))
        return state

    def _feed(self, name: str, x: Any, relu_at_end: bool = False) -> Any:
        i = 0
        while f"{name}/{i}/weight" in self._arrays:
            x = x @ self._arrays[f"{name}/{i}/weight"] + self._arrays[f"{name}/{i}/bias"]
            i += 1
            if relu_at_end or f"{name}/{i}/weight" in self._arrays:
                x = np.maximum(x, 0.0)
        return x

    def _encoded(self, part: dict[str, Any], value: Any) -> Any:
        """(B, ...) one part of an observation → (B, features) as the network sees it."""
        n, name = len(value), part["name"]
        if part["as"] == "one-hot":
            value = value - np.reshape(part["start"], value.shape[1:]) if part["start"] else value
            columns = (
                np.moveaxis(value, part["axis"], -1) if part["axis"] is not None else value.reshape(n, -1)
            )
            hot = [columns[..., i, None] == np.arange(size) for i, size in enumerate(part["categories"])]
            return np.concatenate(hot, axis=-1).reshape(n, -1).astype(np.float32) * np.float32(part["scale"])
        if part["as"] == "image":  # ReLU convolutions, flattened
            if (
                part["channels"] != "stack"
            ):  # of a stack (B, frames, height, width), the frames are the channels
                value = np.moveaxis(value, part["axis"], -3)
                value = value.reshape(n, -1, *value.shape[-2:])
            x = (value.astype(np.float32) - np.float32(part["low"])) * np.float32(part["scale"])
            for i, (kernel, stride, padding) in enumerate(part["layers"]):
                weight, bias = self._arrays[f"{name}/{i}/weight"], self._arrays[f"{name}/{i}/bias"]
                x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
                windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
                windows = windows[:, :, ::stride, ::stride]  # (B, channels, height, width, kernel, kernel)
                x = np.einsum("bchwij,ocij->bohw", windows, weight, optimize=True) + bias[:, None, None]
                x = np.maximum(x, 0.0)
            return x.reshape(n, -1)
        numbers = value.reshape(n, -1).astype(np.float32)
        if part["as"] == "normalized":
            mean, std = self._arrays[f"{name}/mean"], self._arrays[f"{name}/std"]
            framed = numbers.reshape(n, part["stack"], -1)
            return ((framed - mean) / std).clip(-part["limit"], part["limit"]).reshape(n, -1)
        return (numbers - np.float32(part["low"])) / np.float32(part["span"])
