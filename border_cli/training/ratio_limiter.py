"""The ratio limiter: how many env steps there are per opt step, enforced on both sides.

An opt step is allowed when env_steps >= warmup_period + opt_interval·(opt_steps + 1). Actors act on credit: all credit
together stays <= warmup_period + opt_interval·(opt_steps + 1) + tolerance, and <= max_env_steps. Pure arithmetic over
integers; it knows neither processes nor time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from border_cli.core.state import State, check_like

_UNLIMITED = 2**62
_FREE_CREDIT = 1024
"""Unused credit of an actor where no ratio is enforced [env steps]: it then acts while the learner does a few opt steps."""


def most_credit(opt_interval: float | None, tolerance: int, n_actors: int, envs_per_actor: int) -> int:
    """The most unused credit that an actor has: its share of the tolerance, in whole steps of its environments."""
    share = _FREE_CREDIT if opt_interval is None else tolerance // n_actors
    return max(share - share % envs_per_actor, envs_per_actor)


class RatioLimiter:
    """Counts env steps and opt steps, gives credit to actors, and says when the learner may take an opt step.

    Actors may leave and come back (`set_present`): one that has left gets no credit and loses what it had not used.

    No actor holds more unused credit than tolerance/n_actors, its share. So enough is left for any one actor, however many
    others are late.

    Args:
        opt_interval: env steps per opt step; None: not enforced.
        warmup_period: env steps before the first opt step.
        tolerance: env steps that acting may be ahead of what the next opt step needs.
        envs_per_actor: credit is given in multiples of it where possible.
        least_credit: an actor waits while it has less: one with a vector environment steps all its environments or none.

    Raises ValueError if tolerance < n_actors·envs_per_actor.

    Attributes:
        env_steps: env steps whose data is in the replay.
        credits: env steps that each actor may have taken in all.
    """

    def __init__(
        self,
        opt_interval: float | None,
        warmup_period: int,
        tolerance: int,
        max_env_steps: int | None = None,
        n_actors: int = 1,
        envs_per_actor: int = 1,
        least_credit: int = 1,
    ) -> None:
        if opt_interval is not None and tolerance < n_actors * envs_per_actor:
            raise ValueError(f"tolerance {tolerance} < n_actors·envs_per_actor = {n_actors * envs_per_actor}")
        # The decimal as typed, not the nearest binary number: with 0.1, exactly one env step per ten opt steps.
        self._interval = None if opt_interval is None else Fraction(str(opt_interval))
        self._warmup = warmup_period
        self._tolerance = tolerance
        self._max_env_steps = max_env_steps
        self._group, self._least_credit = envs_per_actor, least_credit
        self._share = most_credit(opt_interval, tolerance, n_actors, envs_per_actor)
        self._least_grant = max(envs_per_actor, self._share // 2 - (self._share // 2) % envs_per_actor)
        self.env_steps = 0
        self.opt_steps = 0
        self.credits = [0] * n_actors
        self._used = [0] * n_actors  # per actor; behind them those of actors that only an earlier launch had
        self._base_env_steps = 0  # the ratio counts from here: from the start, or from the loss of the replay
        self._base_opt_steps = 0
        self._present = [True] * n_actors

    def state(self) -> dict[str, Any]:
        """As JSON values, without unused credit, which is granted again."""
        return {
            "env_steps": self.env_steps,
            "opt_steps": self.opt_steps,
            "used": list(self._used),
            "base_env_steps": self._base_env_steps,
            "base_opt_steps": self._base_opt_steps,
        }

    def load_state(self, saved: dict[str, Any]) -> None:
        """Restore a saved state. Raises ValueError for one that does not fit.

        The saved run may have had another number of actors. What actors that are missing now had used is kept, and they
        continue from it in a later launch that has them again.
        """
        check_like(State({}, saved), State({}, self.state()), "the ratio limiter")
        used, env_steps = saved["used"], saved["env_steps"]
        if not used or min(used) < 0 or sum(used) != env_steps:
            raise ValueError(f"the actors took {sum(used)} env steps together, not {env_steps}")
        base = saved["base_env_steps"], saved["base_opt_steps"]
        if not (0 <= base[0] <= env_steps and 0 <= base[1] <= saved["opt_steps"]):
            raise ValueError(
                f"the ratio counts from env step {base[0]} and opt step {base[1]}, which is later"
            )
        n = len(self.credits)
        self._used = used + [0] * (n - len(used))
        self.credits = self._used[:n]
        self.env_steps, self.opt_steps = env_steps, saved["opt_steps"]
        self._base_env_steps, self._base_opt_steps = base

    def warm_up_again(self) -> None:
        """Count from here like a new run, with a warm-up first, because the run continues with an empty replay.

        Otherwise all opt steps that the earlier env steps allow would follow at once, on the first few rows.
        """
        self._base_env_steps, self._base_opt_steps = self.env_steps, self.opt_steps

    def set_present(self, present: Sequence[bool]) -> list[int]:
        """Set which actors can act. Before, everything that an absent actor has handed over must be inserted.

        Returns the actors that have left since the last call. Their credit falls to what they have used.
        """
        left = [i for i, was in enumerate(self._present) if was and not present[i]]
        for actor in left:
            self.credits[actor] = self._used[actor]
        self._present = list(present)
        return left

    def inserted(self, actor: int, env_steps: int) -> None:
        """Count env steps of an actor whose data is in the replay now."""
        self._used[actor] += env_steps
        self.env_steps += env_steps

    def may_opt(self) -> bool:
        """Whether the ratio allows one more opt step. It does not say whether the replay holds a batch."""
        if self._interval is None:
            return self.env_steps - self._base_env_steps >= max(self._warmup, 1)
        ahead = self.env_steps - self._base_env_steps - self._warmup
        return ahead * self._interval.denominator >= self._interval.numerator * self._next_opt_step

    def count_opt(self) -> None:
        self.opt_steps += 1

    @property
    def allowed_env_steps(self) -> int:
        """Total of env steps that all actors together may take."""
        if self._interval is None:
            allowed = _UNLIMITED
        else:
            step = (self._interval.numerator * self._next_opt_step) // self._interval.denominator
            allowed = self._base_env_steps + self._warmup + step + self._tolerance
        return allowed if self._max_env_steps is None else min(allowed, self._max_env_steps)

    def budget_used(self, may_opt: bool) -> bool:
        """Whether max_env_steps are in the replay and every opt step that they allow is done.

        Each actor may have less than `least_credit` left over.
        may_opt: whether one more opt step is possible now. If not, none will be, as no more rows arrive.
        """
        most = _UNLIMITED if self._max_env_steps is None else self._max_env_steps
        # In lockstep rounds take the place of credit.
        rest = len(self.credits) * (self._least_credit - 1)
        is_used = self.env_steps >= most or (
            self.env_steps + rest >= most and self._given >= most and not self._can_act
        )
        return is_used and (self._interval is None or not may_opt)

    def grant(self, missing: int = 0) -> bool:
        """Raise `credits` as far as allowed. Returns whether anything changed.

        Args:
            missing: rows that the replay lacks for a batch. If all env steps that may precede the first opt step were
                taken and left too few rows, because an actor died with rows of incomplete n-step sums, the warm-up
                becomes longer by this many env steps.
        """
        allowed = self.allowed_env_steps
        if not missing and allowed <= self._given:  # usually
            return False
        # The learner waits, and no actor has enough credit left. Before the first opt step it may wait for a batch
        # although the ratio allows the opt step.
        starved = not self._can_act and (self._next_opt_step == 1 or not self.may_opt())
        if missing and starved and self._given == allowed != self._max_env_steps:
            self._base_env_steps += missing
            allowed = self.allowed_env_steps
        free = allowed - self._given
        give_all = starved or allowed == self._max_env_steps  # the rest, in whole steps of an actor or not
        if free <= 0 or (free < self._least_grant and not give_all):
            return False
        before = list(self.credits)
        # Those with the least credit first, which is fair over the whole run.
        for actor in sorted(range(len(self.credits)), key=self.credits.__getitem__):
            if not self._present[actor]:
                continue
            amount = min(self._share - (self.credits[actor] - self._used[actor]), free)
            if not give_all:
                amount -= amount % self._group
            if amount >= (1 if give_all else self._least_grant):
                self.credits[actor] += amount
                free -= amount
        return self.credits != before

    def opt_steps_until_grant(self) -> int:
        """Opt steps after which `grant` can give a useful amount; a very large number if opt steps do not allow more."""
        if self._interval is None or self.allowed_env_steps == self._max_env_steps:
            return _UNLIMITED
        wanted = self._given + max(self._least_grant, self._tolerance // 4)
        beyond = wanted - self._base_env_steps - self._warmup - self._tolerance
        at = math.ceil(beyond / self._interval) - 1 + self._base_opt_steps
        return max(1, at - self.opt_steps)

    @property
    def ratio(self) -> float | None:
        """Env steps per opt step since the (last) warm-up; None before its first opt step."""
        opt_steps = self.opt_steps - self._base_opt_steps
        return (self.env_steps - self._base_env_steps - self._warmup) / opt_steps if opt_steps else None

    @property
    def _given(self) -> int:
        """Env steps granted in all, those of earlier launches' actors included."""
        return sum(self.credits) + sum(self._used[len(self.credits) :])

    @property
    def _can_act(self) -> bool:
        """Whether any actor has enough credit for a step."""
        return any(credit - self._used[i] >= self._least_credit for i, credit in enumerate(self.credits))

    @property
    def _next_opt_step(self) -> int:
        """Number of the next opt step since the last warm-up."""
        return self.opt_steps - self._base_opt_steps + 1
