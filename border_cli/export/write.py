"""A policy as a torch module, written in one of the formats, with a README of its inputs and outputs."""

from __future__ import annotations

import io
import json
import shutil
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents import numpy_policy
from border_cli.agents.dqn.agent import DqnPolicy
from border_cli.agents.dqn.heads import CategoricalHead
from border_cli.agents.dsac.agent import DsacPolicy
from border_cli.agents.flashsac.agent import FlashsacPolicy
from border_cli.agents.memory import STATE
from border_cli.agents.nets import arrays_of
from border_cli.agents.policy import NetworkPolicy
from border_cli.agents.sac.agent import SacPolicy
from border_cli.agents.sac.network import MEAN_RANGE, TanhBijector
from border_cli.config.registry import require_package
from border_cli.core.errors import UsageError, first_line
from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf

OPSET = 17


class ExportedPolicy(nn.Module):
    """The greedy action for each row of a batch.

    Args:
        policy: a `NetworkPolicy`. Others raise UsageError.
    """

    def __init__(self, policy: ActingPolicy, spec: EnvSpec) -> None:
        super().__init__()
        if not isinstance(policy, NetworkPolicy) or not _decides(type(policy)):
            raise UsageError(
                "the agent of this model cannot be exported",
                allowed="border-cli's own agents, and those whose policy is a NetworkPolicy",
            )
        self.network = policy.network
        self._policy = policy
        self._leaves = spec.obs.leaves
        self._action = spec.action
        bounds = () if spec.action.kind == "discrete" else spec.action.bounds
        self._bounds = [torch.from_numpy(bound) for bound in bounds]
        self.units = policy.memory_units

    def forward(self, *parts: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """(B, ...) for each leaf of the observation, as the environment gives it → (B, ...) actions as it takes them.

        With a memory, the last part is its state (B, units), zeros when an episode begins; the state after the time step
        is returned too.
        """
        state = None if self.units is None else parts[-1]
        obs = {leaf.name: part for leaf, part in zip(self._leaves, parts, strict=state is None)}
        for leaf in self._leaves:
            if leaf.start:
                obs[leaf.name] = obs[leaf.name] - torch.tensor(leaf.start).reshape(leaf.shape)
        decided, after = self._policy.decide(obs, state)
        action = self._as_taken(decided)
        return action if after is None else (action, after)

    def _as_taken(self, decided: Tensor) -> Tensor:
        dtype = getattr(torch, self._action.dtype)
        if self._action.kind == "discrete":
            return (decided + self._action.start).to(dtype)
        if self._action.kind == "multi_discrete":
            return (decided + self._bounds[0]).to(dtype)
        action = decided.reshape(-1, *self._action.shape).double().clamp(*self._bounds)
        return (action if dtype.is_floating_point else action.round()).to(dtype)


def _decides(kind: type[NetworkPolicy]) -> bool:
    """Whether the policy acts by `_greedy`: no subclass of the class that defines it acts in another way."""
    owner = next(base for base in kind.__mro__ if "_greedy" in vars(base))
    derived = kind.__mro__[: kind.__mro__.index(owner)]
    ways = ("sample", "_exploit", "_stored", "action_values", "begin_episode")
    return owner is not NetworkPolicy and not any(name in vars(base) for base in derived for name in ways)


def write_policy(
    policy: ActingPolicy, spec: EnvSpec, folder: Path, format: str, title: str, mask_in_info: bool = False
) -> list[Path]:
    """Write the files of a format to a folder, which is created. Returns them.

    mask_in_info: whether the environment's info says which actions are allowed.

    Raises UsageError where the agent cannot be exported or a package is missing, OSError.
    """
    spec = getattr(policy, "seen", spec)
    module = ExportedPolicy(policy, spec).eval().requires_grad_(False)
    names = {"onnx": ["policy.onnx"], "numpy": ["policy.py", "policy.json", "policy.npz"]}
    if format == "onnx":
        with torch.no_grad():
            content = _onnx(module, spec)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "policy.onnx").write_bytes(content)
    else:
        _check_numpy(policy)
        folder.mkdir(parents=True, exist_ok=True)
        _write_numpy(policy, spec, folder, mask_in_info)
    epsilon = policy.config.eval_epsilon if isinstance(policy, DqnPolicy) else 0.0
    page = _readme(spec, format, title, epsilon, mask_in_info, module.units)
    (folder / "README.md").write_text(page, encoding="utf-8")
    return [folder / name for name in (*names[format], "README.md")]


def _onnx(module: ExportedPolicy, spec: EnvSpec) -> bytes:
    """The policy as the content of an ONNX file."""
    require_package("onnx", "format=onnx", "export")
    names, example = [leaf.name for leaf in spec.obs.leaves], list[Tensor]()  # a batch of two observations
    for leaf in spec.obs.leaves:
        value = torch.full((2, *leaf.shape), int(leaf.name == spec.mask), dtype=getattr(torch, leaf.dtype))
        example.append(value + torch.tensor(leaf.start).reshape(leaf.shape) if leaf.start else value)
    outputs = ["action"]
    if module.units is not None:
        names, outputs = [*names, STATE], [*outputs, f"{STATE}_next"]
        example.append(torch.zeros(2, module.units))
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the other exporter needs a package more, and writes two files
        try:
            torch.onnx.export(
                module,
                tuple(example),
                content,
                input_names=names,
                output_names=outputs,
                dynamic_axes={name: {0: "batch"} for name in (*names, *outputs)},
                opset_version=OPSET,
                dynamo=False,
            )
        except torch.onnx.errors.OnnxExporterError as e:
            reason = f"torch cannot write this network as ONNX: {first_line(e)}"
            raise UsageError(reason, allowed="an encoder of layers that its exporter knows") from e
    return content.getvalue()


# -- numpy -------------------------------------------------------------------


def _check_numpy(policy: ActingPolicy) -> None:
    """Raise UsageError for a network that is not border-cli's own."""
    if type(policy) not in (DqnPolicy, DsacPolicy, SacPolicy, FlashsacPolicy):
        raise UsageError("format=numpy is for border-cli's own agents", allowed="format=onnx")
    if cast(Any, policy).network.encoder.own is not None:
        raise UsageError("format=numpy is not for an encoder of your own", allowed="format=onnx")


def _write_numpy(policy: ActingPolicy, spec: EnvSpec, folder: Path, mask_in_info: bool) -> None:
    own = cast(NetworkPolicy, policy)
    network: Any = own.network
    description, arrays = {"network": network.described()}, arrays_of(network)
    assert arrays is not None  # exported policies are on the CPU
    if isinstance(policy, SacPolicy):
        low, high = (bound.ravel() for bound in spec.action.bounds)
        middle, half_range = TanhBijector(spec.action).arrays
        bounds = {"middle": middle, "half_range": half_range, "low": low, "high": high}
        arrays |= {f"action/{name}": bound for name, bound in bounds.items()}
        unlimited = -np.finfo(np.float32).max.item(), np.finfo(np.float32).max.item()
        description |= {"kind": "action", "clip": MEAN_RANGE if network.is_state_dependent else unlimited}
    else:  # the most probable action of DSAC is that of the largest logit
        head = policy.head if isinstance(policy, DqnPolicy) else None
        if isinstance(head, CategoricalHead):
            arrays["atoms"] = head.atoms.numpy()
        description |= {"kind": "values", "head": "categorical" if "atoms" in arrays else "mean"}
        description["network"]["actions"] = network.n_actions
    action: dict[str, Any] = {"shape": spec.action.shape, "dtype": spec.action.dtype}
    if spec.action.kind != "box":
        action |= {"start": spec.action.low or spec.action.start, "branches": spec.action.branches}
    inputs = [
        {"name": leaf.name, "path": leaf.path, "shape": leaf.shape, "dtype": leaf.dtype, "start": leaf.start}
        for leaf in spec.obs.leaves
    ]
    description |= {"inputs": inputs, "action": action, "units": own.memory_units}
    description |= {"mask": spec.mask, "mask_in_info": mask_in_info}
    (folder / "policy.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    np.savez(folder / "policy.npz", **arrays)  # type: ignore[arg-type]
    shutil.copyfile(str(numpy_policy.__file__), folder / "policy.py")


# -- README ------------------------------------------------------------------


_USE = {
    "onnx": """\
    import onnxruntime
    session = onnxruntime.InferenceSession("policy.onnx")
    {memory}{outputs} = session.run(None, {{{inputs}}})

Each input is a batch of B values, of the part of an observation that it is named after:
""",
    "numpy": """\
    from policy import load          # policy.py needs numpy alone
    policy = load()                  # policy.json and policy.npz beside it
    {memory}action = policy(observation{mask})

The policy takes an observation as the environment gives it, and returns the action. It also takes a batch, with one more
dimension in front of each array, and returns a batch of actions. The parts of an observation:
""",
}
_ZEROS = f"{STATE} = numpy.zeros((B, {{}}), numpy.float32)  # when the B episodes begin\n    "
_BEGIN = "policy.begin_episode()           # after each reset: the network has a memory\n    "


def _readme(
    spec: EnvSpec, format: str, title: str, epsilon: float, mask_in_info: bool, units: int | None
) -> str:
    batch, leaves = ("B",) if format == "onnx" else (), spec.obs.leaves
    inputs = ", ".join(f'"{leaf.name}": {leaf.name.replace(".", "_")}' for leaf in leaves)
    memory, outputs = "", "(actions,)"
    if units is not None:
        memory = _BEGIN if format == "numpy" else _ZEROS.format(units)
        inputs, outputs = f'{inputs}, "{STATE}": {STATE}', f"actions, {STATE}"
    mask = ', action_mask=info["action_mask"]' if mask_in_info else ""
    use = _USE[format].format(inputs=inputs, mask=mask, memory=memory, outputs=outputs)
    lines = [f"# {title}", "", "A trained policy, with the preprocessing of its observations.", "", use]
    lines += ["| input | shape | dtype | what it is |", "| --- | --- | --- | --- |"]
    for leaf in leaves:
        about = f"its part {'.'.join(map(str, leaf.path))}" if leaf.path else "the observation"
        if leaf.name == spec.mask:
            about = "1 for an allowed action, 0 for another"
        elif leaf.stack > 1:
            about += f"; the newest {leaf.stack}, the newest last"
        lines.append(f"| `{leaf.name}` | {_shape(leaf, batch)} | {leaf.dtype} | {about} |")
    lines += [
        "",
        f"The output `action` is {_shape(spec.action, batch)} {spec.action.dtype}, as the environment takes it.",
        "",
        "The actions are greedy, without exploration.",
    ]
    if epsilon:
        lines[-1] += f" Evaluations of this run take a random action instead with probability {epsilon:g}."
    return "\n".join(lines) + "\n"


def _shape(part: ObsLeaf | ActionSpec, batch: tuple[str, ...]) -> str:
    return f"({', '.join(map(str, (*batch, *part.shape)))})"
