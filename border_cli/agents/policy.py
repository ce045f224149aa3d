"""What the policies of all agents share: parameters and their synchronisation, memory, random generators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.memory import STATE, Memory
from border_cli.agents.nets import numpy_network
from border_cli.agents.params import FlatParams
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.core.types import ModelInfo, Step
from border_cli.runtime import seeding
from border_cli.runtime.tensors import to_device


class NetworkPolicy(ABC):
    """Implements `core.protocols.ActingPolicy` except for the choice of actions.

    Args:
        params: (n,) its parameters, used in place: the policy of an agent acts with the parameters that it learns.
        actor, incarnation: with the seed they determine the random generator of exploration. Evaluation has its own
            generator, which depends on the seed alone and restarts with each `eval`.
        shared: whether an algorithm changes the parameters too. Otherwise only `sync_model` does.

    network: the network that it acts with · seen: the spec without the parts of the observation that only critics see.
    """

    def __init__(
        self,
        layout: FlatParams,
        params: Tensor,
        config: Any,
        spec: EnvSpec,
        seed: int,
        actor: int = 0,
        n_actors: int = 1,
        incarnation: int = 0,
        shared: bool = False,
    ) -> None:
        self.params = params
        self.config = config
        self.spec, self.seed = spec, seed
        self._mask = spec.mask
        self.seen = spec.without(getattr(config, "privileged_obs", ()))
        self._shared = shared
        self._views: tuple[dict[str, Array], Array] | None = None  # of parameters on the CPU
        self.version = 0
        self._layout = layout
        self.network: Any = layout.bind(params)
        self._arrays = numpy_network(self.network)
        self._rng = seeding.generator(seed, seeding.ACTOR, actor, incarnation, 1)
        self._eval_rng = seeding.generator(seed, seeding.EVALUATION_POLICY)
        self._exploring = True
        units = getattr(config, "gru", None)
        self._memory = None if units is None else Memory(units)
        self._kept: dict[str, Any] = {} if units is None else {"memory": self._memory}
        """What is kept of each environment, saved with the generators."""
        self._prepare(spec, actor, n_actors)

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:  # noqa: B027
        """The rest of the initialisation, where a subclass has more."""

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        envs = env_ix or range(len(next(iter(obs.values()))))
        outputs, seen = self._outputs(obs, envs, self._noise() if self._exploring else None)
        if self._exploring:
            action = self._explore(outputs, seen, env_steps, envs)
        else:
            action = self._exploit(outputs, seen)
        if self._memory is not None:
            self._memory.keep()
        return to_array(self._stored(action))

    @torch.inference_mode()
    def act(self, obs: dict[str, Tensor], env_steps: int) -> Tensor:
        """As `sample` in train mode, of tensors on the device: {name: (B, ...)} of environments 0 … B - 1 → (B, ...)."""
        noise = self._noise()
        outputs = self.network(obs, *(() if noise is None else (noise,)))
        action = self._explore(outputs, obs, env_steps, range(len(next(iter(obs.values())))))
        return cast(Tensor, self._stored(action))

    def decide(self, obs: dict[str, Tensor], state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The greedy action of each row as a function of tensors, for exports: {name: (B, ...)} as stored → (B, ...).

        state: (B, units) of the memory of a recurrent network. Its state after the time step is returned too.
        """
        outputs, after = (self.network(obs), None) if state is None else self.network.remember(obs, state)
        return self._greedy(outputs, obs), after

    def _outputs(
        self, obs: Obs, env_ix: Sequence[int] | None = None, noise: Any = None
    ) -> tuple[Any, dict[str, Any]]:
        """What the network returns, and what it gets: arrays where numpy computes it, else tensors on the device.

        A memory passes one time step. env_ix: the environments that it remembers; None: those of the last call.
        """
        memory, seen = self._memory, dict[str, Any](obs)
        if memory is not None and env_ix is not None:
            memory.select(env_ix)
        before, args = None if memory is None else memory.before, () if noise is None else (noise,)
        if self._arrays is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # as torch
                normal = None if noise is None else noise.normal.numpy()
                *outputs, after = self._arrays(obs, normal, before)
                returned = self.network.of_outputs(*outputs)
        else:
            device, after = self.params.device, None
            seen = {name: to_device(rows, device) for name, rows in obs.items()}
            with torch.inference_mode():
                if before is None:
                    returned = self.network(seen, *args)
                else:
                    returned, after = self.network.remember(seen, to_device(before, device), *args)
        if memory is not None:
            memory.after = to_array(after)
        return returned, seen

    def _noise(self) -> Any:
        """What the network takes in train mode besides an observation: random numbers, `normal`, or None."""
        return None

    @abstractmethod
    def _explore(self, outputs: Any, obs: dict[str, Any], env_steps: int, env_ix: Sequence[int]) -> Any:
        """Actions in train mode, arrays or tensors as the outputs of the network; random numbers come from `_rng`."""

    @abstractmethod
    def _greedy(self, outputs: Any, obs: dict[str, Any]) -> Any:
        """The best actions."""

    def _exploit(self, outputs: Any, obs: dict[str, Any]) -> Any:
        """Actions in eval mode; random numbers, if any, come from `_eval_rng`."""
        return self._greedy(outputs, obs)

    def _stored(self, action: Any) -> Any:
        """Actions as the replay and the environments take them."""
        return action

    @property
    def memory_units(self) -> int | None:
        """Units of the memory; None without one."""
        return None if self._memory is None else self._memory.units

    def extras(self, step: Step) -> dict[str, Array]:
        """The states of the memory before the observations, if there is one; a subclass may add columns."""
        return {} if self._memory is None else {STATE: self._memory.before}

    def begin_episode(self, env_ix: int) -> None:
        """Forget what is kept of an environment."""
        for part in self._kept.values():
            part.begin_episode(env_ix)

    def train(self) -> None:
        self._exploring = True

    def eval(self) -> None:
        """Act greedily from now on."""
        self._exploring = False
        self._eval_rng = seeding.generator(self.seed, seeding.EVALUATION_POLICY)

    def model_info(self) -> ModelInfo:
        if self._views is None or self.params.device.type != "cpu":
            params = self.params.detach().cpu()
            parts = self._layout.unflatten(params)
            self._views = {name: part.numpy() for name, part in parts.items()}, params.numpy()
        return ModelInfo(self.version, *self._views)

    def sync_model(self, info: ModelInfo) -> None:
        """Copy the parameters. Raises ValueError if names or shapes differ."""
        parts = self._layout.unflatten(self.params)
        expected = {name: tuple(part.shape) for name, part in parts.items()}
        received = {name: tuple(array.shape) for name, array in info.arrays.items()}
        if expected != received:
            raise ValueError(f"the network has {expected}, the model {received}")
        if info.vector is None:
            copy_arrays(parts, info.arrays)
        else:
            self.params.copy_(torch.from_numpy(info.vector))
        if self._arrays is not None and not self._shared:
            self._arrays.copy_params()
        self.version = info.version

    def generator_state(self) -> dict[str, Any]:
        kept = {name: part.state() for name, part in self._kept.items()}
        return dict(self._rng.bit_generator.state) | kept

    def load_generator_state(self, state: dict[str, Any]) -> None:
        kinds = dict.fromkeys([*self._rng.bit_generator.state, *self._kept])
        check_like(State({}, {"policy": state}), State({}, {"policy": kinds}), "the generators")
        for name, part in self._kept.items():
            part.load_state(state[name])
        seeding.restore(self._rng, {name: state[name] for name in state.keys() - self._kept.keys()})


def to_array(value: Any) -> Array:
    """An array as it is, a tensor as an array."""
    return value if isinstance(value, np.ndarray) else value.detach().cpu().numpy()


def copy_arrays(tensors: Mapping[str, Tensor], arrays: Mapping[str, Array]) -> None:
    """Copy arrays into the tensors of the same names."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.from_numpy(np.array(arrays[name])))
