"""Replay rows made from env steps, as actors make them."""

from __future__ import annotations

from border_cli.actors.sampler import Sampler
from border_cli.core.protocols import ActingPolicy, Env, StepProcessor
from border_cli.core.types import Items, Step


def processed(processor: StepProcessor, *steps: Step) -> Items:
    """Return the rows that these env steps complete."""
    for step in steps:
        processor.add(step)
    return processor.take()


def sampler_of(env: Env, policy: ActingPolicy, processor: StepProcessor) -> Sampler:
    """Return a started sampler. The first episodes have the seeds 1, 2 …"""
    sampler = Sampler(env, policy, processor, lambda env, episode: None if episode else env + 1)
    sampler.begin()
    return sampler
