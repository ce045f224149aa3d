"""Every attribute of what a run goes on from is saved, or there is a reason why it need not be (row G3).

An attribute that is new fails this test until somebody has decided. That what is saved is enough is held by
`test_resume_exact`, and that all of it is checked when it comes back by `tests/faults/test_nonsense.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.trainers.loop import TrainingLoop
from tests.real_runs import train

STATE = {
    "Trainer": "_failed _position judging parts saving",
    "Position": "agent_values incarnations recorded_at records to_do",
    "Judging": "_trials best last skipped",
    "Saving": "saved_at",
    "RatioLimiter": "_base_env_steps _base_opt_steps _used env_steps opt_steps",
    "Telemetry": "_interval_episodes _lags _lengths _recent_returns _returns episodes progress",
    "DqnAgent": "_rng _state _unread _weights opt_steps skipped_in_a_row version",
    "UniformReplayBuffer": "_before_draws _data _next _next_draw _rng _rows _tails",
    "InThreadSource": "_cursor _sampler _sequence _stat _taken _version",
    "ResumableSampler": "_env _episodes _processor _times _to_cut dropped",
    "TapedEnv": "_actions _env _seeds",
    "NStepProcessor": "_streams",
}
CONFIG = {
    "Trainer": "_stages config",
    "Judging": "_config _episodes _evaluator _keep_open _saving _should_stop _telemetry _tick _view _write",
    "Saving": "_keeper _telemetry",
    "Skipping": "_keeper",
    "RatioLimiter": "_group _interval _least_grant _max_env_steps _share _tolerance _warmup",
    "Telemetry": "_limiter",
    "DqnAgent": "_config _device _epsilon _eval_epsilon _n_actions _net _seed",
    "UniformReplayBuffer": "_action _block_rows _columns _obs_names capacity",
    "InThreadSource": "_close _n_envs",
    "ResumableSampler": "_mender _owner _policy _resumable _seed_of _seeds",
    "TapedEnv": "n_envs spec",
    "NStepProcessor": "_action _clip _columns _gamma _n _obs_names",
}
FOLLOWS = {
    "Trainer": "_begun _final_phase _phase actors skipping",  # of this launch
    "Judging": "_begun_at good_enough",  # the clock; the best score
    "Saving": "_failures _left_out",  # of this launch's disk
    "Skipping": "_in_series _telling",  # what was told
    "RatioLimiter": "_present credits",  # given anew to whoever is there
    "Telemetry": "_began _collect_ms _excluded_s _failed_saves _last _next_refresh _opt_ms _recent_lags _save_ms _window"
    " blocked_s",  # the clock, and the recent past
    "DqnAgent": "_batch _evaluation_rng _exploring _networks _q_values _tensor_batch",  # rooms; made anew in evaluations
    "UniformReplayBuffer": "_drawn _ready",  # drawn again; counted again
    "InThreadSource": "_announced _credit _started",  # told by the loop; the clock
    "ResumableSampler": "env_steps exact phase",  # of this launch
}


def test_g3_every_attribute_of_a_run_is_decided_on(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[TrainingLoop] = []
    begin = TrainingLoop._start
    monkeypatch.setattr(
        TrainingLoop, "_start", lambda loop, resumed: (loops.append(loop), begin(loop, resumed))
    )
    train("trainer=sync", "trainer.max_opts=20")
    (loop,) = loops
    parts, source = loop.parts, loop.parts.source
    sampler = source._sampler  # type: ignore[attr-defined]
    owners = (
        loop,
        loop._position,
        loop.judging,
        loop.saving,
        loop.skipping,
        parts.limiter,
        parts.telemetry,
        parts.agent,
    )
    for owner in (*owners, parts.buffer, source, sampler, sampler._env, sampler._processor):
        name = type(owner).__name__
        decided = [
            attribute for table in (STATE, CONFIG, FOLLOWS) for attribute in table.get(name, "").split()
        ]
        assert sorted(decided) == sorted(vars(owner)), name
