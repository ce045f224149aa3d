"""The ratio limiter: how many env steps there are per opt step, enforced on both sides (contract C2).

An opt step is allowed when env_steps >= warmup_period + opt_interval·(opt_steps + 1). Actors act on credit: all credit
together stays <= warmup_period + opt_interval·(opt_steps + 1) + tolerance, and <= max_env_steps. Pure arithmetic over
integers; it knows neither processes nor time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from border_cli.core.state import MAX_COUNT, count, listed, require

_UNLIMITED = MAX_COUNT


class RatioLimiter:
    """Counts env steps and opt steps, and says who may go on.

    opt_interval: env steps per opt step, None to let both sides run free · tolerance: env steps that acting may be
    ahead · n_actors, envs_per_actor: credit is given in whole steps of an actor where possible.

    Actors may leave and come back (`attend`): one that has left gets no credit, and loses what it had not used.
    credits: of the seats there are now. What was used in seats that are gone since an earlier launch stays with those,
    until a launch has them again.

    No actor ever holds more unused credit than its share tolerance/n_actors, so actors that are late, however many,
    leave enough for any one that is not. Raises ValueError where tolerance < n_actors·envs_per_actor.
    """

    def __init__(
        self,
        opt_interval: float | None,
        warmup_period: int,
        tolerance: int,
        max_env_steps: int | None = None,
        n_actors: int = 1,
        envs_per_actor: int = 1,
    ) -> None:
        if opt_interval is not None and tolerance < n_actors * envs_per_actor:
            raise ValueError(f"tolerance {tolerance} < n_actors·envs_per_actor = {n_actors * envs_per_actor}")
        # The decimal that was typed, not the nearest binary number: 0.1 means one env step per ten opt steps for ever.
        interval = None if opt_interval is None else Fraction(str(opt_interval))
        self._interval = interval
        self._warmup = warmup_period
        self._tolerance = tolerance
        self._max_env_steps = max_env_steps
        self._group = envs_per_actor
        share = tolerance // n_actors if interval is not None else max(1024, envs_per_actor)
        self._share = max(share - share % envs_per_actor, envs_per_actor)
        self._least_grant = max(envs_per_actor, self._share // 2 - (self._share // 2) % envs_per_actor)
        self.env_steps = 0
        self.opt_steps = 0
        self.credits = [0] * n_actors
        self._used = [0] * n_actors  # then those of seats that only an earlier launch had
        self._base_env_steps = 0  # counted from here: the beginning, or where the replay was lost
        self._base_opt_steps = 0
        self._present = [True] * n_actors

    def state(self) -> dict[str, Any]:
        """As JSON values. Credit that was given and not used is not part of it: it is given anew."""
        return {
            "env_steps": self.env_steps,
            "opt_steps": self.opt_steps,
            "used": list(self._used),
            "base": [self._base_env_steps, self._base_opt_steps],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state. Raises ValueError for one that does not fit.

        With fewer actors than it had, what the others used is known on, and with more again they go on from there.
        """
        require(state, ("env_steps", "opt_steps", "used", "base"), "the ratio limiter")
        env_steps, opt_steps = (count(state[name], name) for name in ("env_steps", "opt_steps"))
        used = [count(steps, "env steps of an actor", env_steps) for steps in listed(state["used"], "used")]
        base_env_steps, base_opt_steps = listed(state["base"], "the base of the ratio", 2)
        if not used or sum(used) != env_steps:
            raise ValueError(f"the actors' env steps are {sum(used)} together, not {env_steps}")
        n = len(self.credits)
        self._used = used + [0] * (n - len(used))
        self.credits = self._used[:n]
        self.env_steps, self.opt_steps = env_steps, opt_steps
        self._base_env_steps = count(base_env_steps, "the base in env steps", env_steps)
        self._base_opt_steps = count(base_opt_steps, "the base in opt steps", opt_steps)

    def warm_up_again(self) -> None:
        """The replay is empty though training has begun: count from here as a new run does, warm-up first.

        Without this, every opt step that the earlier env steps allow would be done at once with the first rows.
        """
        self._base_env_steps, self._base_opt_steps = self.env_steps, self.opt_steps

    def attend(self, present: Sequence[bool]) -> list[int]:
        """Who is there to act; those that have left since, whose `credits` fell. All they handed over is inserted."""
        if present == self._present:
            return []
        left = [
            i for i, (was, there) in enumerate(zip(self._present, present, strict=True)) if was and not there
        ]
        for actor in left:
            self.forfeit(actor)
        self._present = list(present)
        return left

    def inserted(self, actor: int, env_steps: int) -> None:
        """These env steps of an actor are in the replay now."""
        self._used[actor] += env_steps
        self.env_steps += env_steps

    def may_opt(self) -> bool:
        """Whether the ratio allows one more opt step (whether the replay holds a batch is another question)."""
        if self._interval is None:
            return self.env_steps - self._base_env_steps >= max(self._warmup, 1)
        ahead = self.env_steps - self._base_env_steps - self._warmup
        return ahead * self._interval.denominator >= self._interval.numerator * self._next_opt_step

    def opted(self) -> None:
        """One opt step was done."""
        self.opt_steps += 1

    @property
    def allowance(self) -> int:
        """Env steps that may have been taken in all, by all actors together."""
        if self._interval is None:
            allowed = _UNLIMITED
        else:
            step = (self._interval.numerator * self._next_opt_step) // self._interval.denominator
            allowed = self._base_env_steps + self._warmup + step + self._tolerance
        return allowed if self._max_env_steps is None else min(allowed, self._max_env_steps)

    def budget_used(self, may_opt: bool) -> bool:
        """Whether max_env_steps are in the replay and every opt step they allow is done.

        may_opt: whether there may be one more, by the ratio and for a batch: no row comes any more.
        """
        if self._max_env_steps is None or self.env_steps < self._max_env_steps:
            return False
        return self._interval is None or not may_opt

    def grant(self, missing: int = 0) -> bool:
        """Give out what may be given; `credits` then holds the new words. Whether anything changed.

        missing: rows that the replay lacks for a batch. Where all env steps that may precede the first opt step have
        left fewer, because an actor was lost with rows that waited for their sum, the warm-up becomes that much longer.
        """
        allowance = self.allowance
        if missing and self._given == allowance and allowance != self._max_env_steps and self._starved():
            self._base_env_steps += missing
            allowance = self.allowance
        free = allowance - self._given
        # Nothing comes after this: give the rest, whole steps or not.
        last = allowance == self._max_env_steps or self._starved()
        if free <= 0 or (free < self._least_grant and not last):
            return False
        changed = False
        for actor in sorted(
            range(len(self.credits)), key=self.credits.__getitem__
        ):  # fair over the whole run
            if not self._present[actor]:
                continue
            amount = min(self._share - self._unused(actor), free)
            if not last:
                amount -= amount % self._group
            if amount >= self._least_grant or (last and amount > 0):
                self.credits[actor] += amount
                free -= amount
                changed = True
        return changed

    def opt_steps_until_grant(self) -> int:
        """Opt steps after which there is credit worth giving; a very large number where only insertions bring any."""
        if self._interval is None or self.allowance == self._max_env_steps:
            return _UNLIMITED
        wanted = self._given + max(self._least_grant, self._tolerance // 4)
        beyond = wanted - self._base_env_steps - self._warmup - self._tolerance
        at = math.ceil(beyond / self._interval) - 1 + self._base_opt_steps
        return max(1, at - self.opt_steps)

    def forfeit(self, actor: int) -> None:
        """An actor is gone: what it had not used goes to the others."""
        self.credits[actor] = self._used[actor]

    @property
    def ratio(self) -> float | None:
        """Env steps per opt step since the (last) warm-up; None before its first opt step."""
        opt_steps = self.opt_steps - self._base_opt_steps
        return (self.env_steps - self._base_env_steps - self._warmup) / opt_steps if opt_steps else None

    @property
    def _given(self) -> int:
        """Env steps that were given out, to seats that are gone as well."""
        return sum(self.credits) + sum(self._used[len(self.credits) :])

    @property
    def _next_opt_step(self) -> int:
        """The opt step to come, counted from the last warm-up."""
        return self.opt_steps - self._base_opt_steps + 1

    def _starved(self) -> bool:
        """Whether the learner waits and no actor has anything left to use: then any rest is better than none.

        Before the first opt step it may wait for a batch although the ratio allows it one.
        """
        return self._given == self.env_steps and (self._next_opt_step == 1 or not self.may_opt())

    def _unused(self, actor: int) -> int:
        return self.credits[actor] - self._used[actor]
