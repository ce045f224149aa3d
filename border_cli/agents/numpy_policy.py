"""Networks computed by numpy alone: for actors, whose few rows take half of torch's time, and for exported policies.

`border-export` copies this file beside the weights as policy.py:

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


class Network:
    """A network computed from the list of its layers, {name: (B, ...)} observations as stored → outputs.

    Args:
        description: what a network's `described` returns. `encoder` has the parts of an observation; `layers`, `out` and
            `value` the layers after it, each with its `kind` and the beginning `at` of its arrays' names; `actions`, in
            how many groups the outputs are; `levels`, the number of quantile levels of IQN.
        arrays: parameters and statistics by name. They are used in place until `copy_params`.
    """

    def __init__(self, description: dict[str, Any], arrays: dict[str, Any]) -> None:
        self._description = description
        self._arrays = arrays
        self._load(copied=False)
        noisy = [a for name in ("out", "value") for kind, _, a in self._lists[name] if kind == "noisy"]
        self._noise_ends = np.cumsum([sum(arrays[0].shape) for arrays in noisy])[:-1]

    def copy_params(self) -> None:
        """Use a copy of the arrays as they are now, transposed in memory: a quarter of the time for 8 rows of 256."""
        self._load(copied=True)

    def _load(self, copied: bool) -> None:
        self._lists = {
            name: [self._loaded(layer, copied) for layer in self._description.get(name, ())]
            for name in ("layers", "out", "value", "embedding")
        }

    def _loaded(self, layer: dict[str, Any], copied: bool) -> tuple[str, bool, list[Any]]:
        """A layer's kind, whether ReLU follows, and its arrays (n_in, n_out) or (n,); of a residual block its layers."""
        kind = layer["kind"]
        if kind == "residual":
            return kind, layer["relu"], [self._loaded(inner, copied) for inner in layer["layers"]]
        arrays = [self._arrays[f"{layer['at']}.{name}"] for name in _ARRAYS[kind]]
        arrays = [a[0] if kind == "unit" else a.reshape(-1) if a.ndim == 3 else a.T for a in arrays]
        if copied and kind == "norm":
            kind, arrays = "affine", list(_affine([*arrays, layer["eps"]]))
        elif copied:
            arrays = [np.array(array, order="C") for array in arrays]
        if kind in ("norm", "rms"):
            arrays.append(layer["eps"])
        return kind, layer["relu"], arrays

    def __call__(self, obs: dict[str, Any], noise: Any = None, state: Any = None) -> tuple[Any, Any, Any]:
        """Outputs, what the layers before them return, (B, f), and the state of the memory after this time step.

        noise: standard normal numbers for the noisy layers; None: they use their mean weights · state: (B, units) of the
        memory, if there is one. Outputs are (B, actions, k), or (B, n) where the description has no `actions`.
        """
        d, lists = self._description, self._lists
        parts = [self._encoded(part, obs[part["name"]]) for part in d["encoder"]]
        x = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        x, state = _feed(lists["layers"], x, state=state)
        features = x
        if "levels" in d:
            # Quantile levels (i + 1/2)/k, embedded as ReLU of a linear layer of cos(π·j·τ), j = 1 … (IQN)
            tau = (np.arange(d["levels"], dtype=np.float32) + np.float32(0.5)) / np.float32(d["levels"])
            j = np.arange(1, len(lists["embedding"][0][2][0]) + 1)
            cosines = np.cos(np.float32(np.pi) * j * tau[:, None]).astype(np.float32)
            x = x[:, None] * _feed(lists["embedding"], cosines)[0]
        epsilon = []
        if noise is not None:  # factorised: ε = sgn(x)·√|x|, a part for each noisy layer
            epsilon = np.split(np.sign(noise) * np.sqrt(np.abs(noise)), self._noise_ends)[::-1]
        out = _feed(lists["out"], x, epsilon)[0]
        if "actions" not in d:
            return out, features, state
        if lists["value"]:  # dueling: Q = V + A - mean of A, of each of several actions at once
            out = out.reshape(*out.shape[:-1], d["branches"], d["actions"] // d["branches"], -1)
            n = np.float32(out.shape[-2])
            mean = np.add.reduce(out, -2, keepdims=True) / n  # half the time of `mean`
            out = _feed(lists["value"], x, epsilon)[0][..., None, None, :] + out - mean
            out = out.reshape(*out.shape[:-3], -1)
        out = out.reshape(*out.shape[:-1], d["actions"], -1)
        return (out[..., 0].swapaxes(1, 2) if "levels" in d else out), features, state

    def _encoded(self, part: dict[str, Any], value: Any) -> Any:
        """(B, ...) one part of an observation → (B, features) as the network sees it."""
        n = len(value)
        if part["as"] == "one-hot coded":
            columns = (
                np.moveaxis(value, part["axis"], -1) if part["axis"] is not None else value.reshape(n, -1)
            )
            hot = [columns[..., i, None] == np.arange(size) for i, size in enumerate(part["categories"])]
            return np.concatenate(hot, axis=-1).reshape(n, -1).astype(np.float32) * np.float32(part["scale"])
        if part["as"] == "convolutions":  # ReLU convolutions, or the stages of Impala, flattened
            if part["channels"] != "stack":
                # Of a stack (B, frames, height, width), the frames are the channels already.
                value = np.moveaxis(value, part["axis"], -3)
                value = value.reshape(n, -1, *value.shape[-2:])
            x = (value.astype(np.float32) - np.float32(part["low"])) / np.float32(part["span"])
            for i, (_, stride, padding) in enumerate(part.get("layers", ())):
                weight, bias = (
                    self._arrays[f"{part['at']}.layers.{i}.{name}"] for name in ("weight", "bias")
                )
                x = np.maximum(_convolved(x, weight, bias, stride, padding), 0.0)
            for i in range(part.get("stages", 0)):
                x = self._stage(x, f"{part['at']}.stages.{i}", part["spectral_norm"])
            if "stages" in part:
                for axis in (2, 3):
                    ranges = [range(*ends) for ends in pool_windows(x.shape[axis])]
                    x = np.stack([x.take(rows, axis).max(axis) for rows in ranges], axis)
                x = np.maximum(x, 0.0)
            return x.reshape(n, -1)
        numbers = value.reshape(n, -1).astype(np.float32, copy=False)
        if "stack" in part:
            mean, std = self._arrays[f"{part['at']}.mean"], self._arrays[f"{part['at']}.std"]
            framed = numbers.reshape(n, part["stack"], -1)
            return ((framed - mean) / std).clip(-part["limit"], part["limit"]).reshape(n, -1)
        if (part["low"], part["span"]) == (0.0, 1.0):
            return numbers
        return (numbers - np.float32(part["low"])) / np.float32(part["span"])

    def _stage(self, x: Any, at: str, spectral_norm: bool) -> Any:
        """A stage of Impala: a convolution, max pooling of 3×3 with stride 2, two residual blocks."""
        names = ("convolution.weight", "convolution.bias", "weight", "bias")
        first, first_bias, weight, bias = (self._arrays[f"{at}.{name}"] for name in names)
        if spectral_norm:
            norms = np.linalg.norm(weight.reshape(*weight.shape[:2], -1), 2, (1, 2))
            weight = weight / norms.reshape(-1, 1, 1, 1, 1)
        x = _windows(_convolved(x, first, first_bias), 3, 2, 1, -np.inf).max((4, 5))
        for i in (0, 2):
            y = _convolved(np.maximum(x, 0.0), weight[i], bias[i])
            x = x + _convolved(np.maximum(y, 0.0), weight[i + 1], bias[i + 1])
        return x


def _windows(x: Any, kernel: int, stride: int, padding: int, padded: float = 0.0) -> Any:
    """(B, channels, height, width) → (B, channels, height', width', kernel, kernel)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=padded)
    windows = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(2, 3))
    return windows[:, :, ::stride, ::stride]


def _convolved(x: Any, weight: Any, bias: Any, stride: int = 1, padding: int = 1) -> Any:
    windows = _windows(x, weight.shape[2], stride, padding)
    return np.einsum("bchwij,ocij->bohw", windows, weight, optimize=True) + bias[:, None, None]


def pool_windows(side: int, most: int = 6) -> list[tuple[int, int]]:
    """Start and end of each window of adaptive pooling, which leaves at most `most` of `side` pixels."""
    n = min(side, most)
    return [(i * side // n, -(-(i + 1) * side // n)) for i in range(n)]


_ARRAYS = {
    "linear": ("weight", "bias"),
    "noisy": ("weight", "bias", "weight_std", "bias_std"),
    "norm": ("weight", "bias", "mean", "variance"),
    "gru": ("weight_x", "weight_h", "bias_x", "bias_h"),
    "unit": ("weight",),
    "rms": ("scale",),
    "shift": ("bias",),
}
"""Names of the arrays of each kind of layer."""


def _affine(norm: Any) -> tuple[Any, Any]:
    """Scale and shift of a batch normalisation that acts."""
    weight, bias, mean, variance, eps = norm
    scale = weight / np.sqrt(np.maximum(variance, 0.0) + np.float32(eps))
    return scale, bias - scale * mean


def _feed(layers: Any, x: Any, noise: Any = (), state: Any = None) -> tuple[Any, Any]:
    """(B, n_in) → (B, n_out), and the state of a memory after it. noise: of the noisy layers, the next one last."""
    for kind, relu, arrays in layers:
        if kind in ("linear", "noisy"):
            y = x @ arrays[0]
            y += arrays[1]
            if noise and kind == "noisy":
                # x·(σ ⊙ ε_out ⊗ ε_in)ᵀ = ((x ⊙ ε_in)·σᵀ) ⊙ ε_out, without the noisy weights themselves
                epsilon = noise.pop()
                of_inputs, of_outputs = epsilon[: x.shape[1]], epsilon[x.shape[1] :]
                y += ((x * of_inputs) @ arrays[2] + arrays[3]) * of_outputs
        elif kind == "gru":
            y = state = _gru_step(x, state, *arrays)
        elif kind == "residual":
            y = x + _feed(arrays, x)[0]
        elif kind == "unit":
            y = x @ arrays[0]
        elif kind == "shift":
            y = x + arrays[0]
        elif kind == "rms":
            y = x / np.sqrt(np.square(x).mean(1, keepdims=True) + np.float32(arrays[1])) * arrays[0]
        else:
            scale, shift = arrays if kind == "affine" else _affine(arrays)
            y = x * scale + shift
        if relu:
            np.maximum(y, 0.0, out=y)
        x = y
    return x, state


def _gru_step(x: Any, state: Any, of_x: Any, of_state: Any, bias_x: Any, bias_state: Any) -> Any:
    """One time step of a GRU: (B, n_in) and (B, units) → (B, units). Weights of the gates r, z and of n side by side."""
    units = state.shape[1]
    a, b = x @ of_x + bias_x, state @ of_state + bias_state
    gates = 0.5 + 0.5 * np.tanh(0.5 * (a + b)[:, : 2 * units])  # σ(x) = (1 + tanh(x/2))/2 cannot overflow
    new = np.tanh(a[:, 2 * units :] + gates[:, :units] * b[:, 2 * units :])
    return new + gates[:, units:] * (state - new)


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
        self._network = Network(description["network"], arrays)
        self._network.copy_params()
        self._states: dict[int, Any] = {}  # of a memory, by row

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
            rows = (rows[None] if rows.shape == shape else rows).astype(part["dtype"])
            parts[part["name"]] = rows - np.reshape(part["start"], shape) if part["start"] else rows
        if len(single) > 1:
            raise ValueError("some parts of the observation are a batch, others are not")
        actions = self._actions(parts)
        return actions[0] if single == {True} else actions

    def _actions(self, parts: dict[str, Any]) -> Any:
        """(B, ...) for each part of an observation → (B, ...) actions."""
        action, units, state = self._description["action"], self._description["units"], None
        if units:
            zeros, rows = np.zeros(units, np.float32), range(len(next(iter(parts.values()))))
            state = np.stack([self._states.get(i, zeros) for i in rows])
        outputs, _, state = self._network(parts, state=state)
        if units:
            self._states.update(enumerate(state))
        if self._description["kind"] == "values":
            if self._description["head"] == "categorical":  # (B, n, k) logits → (B, n) expected returns
                p = np.exp(outputs - outputs.max(-1, keepdims=True))
                values = (p / p.sum(-1, keepdims=True)) @ self._arrays["atoms"]
            else:
                values = outputs.mean(-1)
            if (mask := parts.get(self._description["mask"])) is not None:
                values = np.where(mask == 0, np.float32(-np.inf), values)
            sizes = np.array(action["branches"])[:, None]  # of D actions at once
            values = values.reshape(len(values), len(sizes), -1)
            values = np.where(np.arange(values.shape[2]) < sizes, values, np.float32(-np.inf))
            chosen = values.argmax(2).reshape(-1, *action["shape"])
            return (chosen + np.reshape(action["start"], action["shape"])).astype(action["dtype"])
        outputs = outputs[:, : len(self._arrays["action/low"])].clip(*self._description["clip"])
        scaled = self._arrays["action/middle"] + self._arrays["action/half_range"] * np.tanh(outputs)
        scaled = np.clip(scaled, self._arrays["action/low"], self._arrays["action/high"])
        if np.dtype(action["dtype"]).kind in "iu":
            scaled = np.rint(scaled)
        return scaled.reshape(-1, *action["shape"]).astype(action["dtype"])
