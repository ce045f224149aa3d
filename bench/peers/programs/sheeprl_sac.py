"""sheeprl: SAC with RL Baselines3 Zoo's values, by its command line; its function for an opt step is wrapped."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np
import sheeprl.algos.sac.sac as sac
import torch
from evaluator import Evaluator, Task, task_from_command_line
from sheeprl.algos.sac.agent import SACAgent
from sheeprl.cli import run


class CountedTrain:
    """Calls sheeprl's `train`, then the evaluator."""

    def __init__(self, task: Task) -> None:
        self._train = sac.train
        self.opt_steps = 0
        self.evaluator = Evaluator(task, self._act)

    def __call__(self, *args: Any) -> None:
        """args: those of `train`; the second is the agent, the eighth the iteration, which is one env step."""
        self._train(*args)
        self.opt_steps += 1
        self._agent: SACAgent = args[1]
        self.evaluator.after_training(self.opt_steps, args[7])

    def _act(self, observations: np.ndarray) -> np.ndarray:
        actor = self._agent.actor
        with torch.no_grad():
            mean = actor.fc_mean(actor.model(torch.as_tensor(observations, dtype=torch.float32)))
            return (torch.tanh(mean) * actor.action_scale + actor.action_bias).numpy()


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    train = CountedTrain(task)
    sac.train = train
    with tempfile.TemporaryDirectory() as folder:
        options = (
            "exp=sac",
            f"env.id={task.env_id}",
            f"seed={task.seed}",
            f"algo.total_steps={task.max_env_steps}",
            f"algo.hidden_size={task.hidden[0]}",
            "algo.learning_starts=10000",
            *(f"algo.{part}.optimizer.eps=1e-8" for part in ("actor", "critic", "alpha")),
            "env.num_envs=1",
            "env.sync_env=true",
            "env.capture_video=false",
            "env.wrapper.render_mode=null",
            "buffer.memmap=false",
            "buffer.checkpoint=false",
            "checkpoint.every=0",
            "checkpoint.save_last=false",
            "algo.run_test=false",
            "metric.log_level=0",
            "metric.disable_timer=true",
            f"log_root={folder}",
            f"hydra.run.dir={folder}",
        )
        sys.argv[1:] = options
        run()
    train.evaluator.end(train.opt_steps)


main()
