"""One env step for some environments of an actor: act, step, make items, reset what ended.

Used as it is by an actor process and by the synchronous trainer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from border_cli.core.items import Items
from border_cli.core.protocols import Env, Policy, StepProcessor


class Sampler:
    """Joins an environment group, a policy and a step processor.

    seeds: first reset seed of each environment; later resets go on with the environment's own generator.
    phase: "reset" or "step", for whoever has to say where an exception came from. dropped: env steps so far whose
    data was of no use, so that they are in no row and no count.
    """

    def __init__(self, env: Env, policy: Policy, processor: StepProcessor, seeds: Sequence[int]) -> None:
        self._env = env
        self._policy = policy
        self._processor = processor
        self.phase = "reset"
        self.dropped = 0
        for env_ix, seed in enumerate(seeds):
            env.reset(env_ix, seed)

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """One env step in each of these environments; the rows it completes.

        env_steps: the global count that exploration schedules follow.
        """
        self.phase = "step"
        action = self._policy.sample(self._env.observe(env_ix), env_steps)
        step = self._env.step(env_ix, action)
        items = self._processor.process(step)
        if step.dropped is not None:
            self.dropped += int(np.count_nonzero(step.dropped))
        self.phase = "reset"
        for i, over in zip(env_ix, step.over.tolist(), strict=True):
            if over:
                self._env.reset(i)
        return items
