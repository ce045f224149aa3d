"""`make same-bits`: two source trees learn the same weights, bit for bit.

    python -m bench.same_bits OLD NEW      compare; OLD and NEW are folders, commits, or files that --save has written
    python -m bench.same_bits OLD --save FILE.json

Every case trains 3,000 opt steps with a fixed seed, with trainer=sync and in lockstep with three actors. The arrays of the
last checkpoint's agent (networks, targets, moments of the optimiser) are compared by shape, type and content, whatever
their names are. All options that matter are given, so that presets may change. Digests depend on the processor and on the
versions of torch and gymnasium. About five minutes per tree on two cores; exits with 1 if a case differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safetensors.numpy import load_file

from bench.report import machine
from bench.trees import Tree, source_tree

COMMON = (
    "preset=none seed=1 threads=1 trainer.max_opts=3000 trainer.max_env_steps=null trainer.record_interval=500 "
    "trainer.save_interval=null checkpoint.replay=none recorder.tensorboard=false"
)
VALUES = "agent.gamma=0.99 agent.lr=0.001 buffer.capacity=2000 agent.hidden=[64,64] agent.batch_size=32"
CARTPOLE = (
    f"env=cartpole {VALUES} agent.target_interval=90 agent.epsilon_start=1.0 agent.epsilon_final=0.05 "
    "agent.epsilon_env_steps=2000 agent.max_grad_norm=10.0 trainer.warmup_period=200 trainer.opt_interval=1.0"
)
PENDULUM = (
    f"env=pendulum {VALUES} agent.random_env_steps=200 trainer.warmup_period=300 trainer.opt_interval=1.0"
)
CATCH = (
    "env=catch env.screen_size=44 env.frame_stack=4 agent.channels=[8,16,16] agent.hidden=[64] agent.batch_size=16 "
    "agent.gamma=0.97 agent.lr=0.0005 agent.target_interval=170 buffer.capacity=2000 buffer.n_step=3 "
    "trainer.warmup_period=200 trainer.opt_interval=1.0 actor_manager.envs_per_actor=2"
)
NO_EVAL = "trainer.eval_interval=null"
AGENTS = {
    "dqn": f"agent=dqn {CARTPOLE} trainer.eval_interval=1000 evaluator.episodes=2",
    "qrdqn": f"agent=qrdqn {CARTPOLE} {NO_EVAL} agent.quantiles=16 agent.dueling=true",
    "iqn": f"agent=iqn {CARTPOLE} {NO_EVAL} agent.quantiles=8 agent.target_quantiles=8 agent.act_quantiles=8",
    "rainbow on frames": f"agent=rainbow {CATCH} {NO_EVAL} agent.v_min=-5.0 agent.v_max=5.0",
    "btr on frames": f"agent=btr {CATCH} {NO_EVAL} agent.channels=[4,8,8]",
    "sac": f"agent=sac {PENDULUM} {NO_EVAL}",
    "td3": f"agent=td3 {PENDULUM} {NO_EVAL}",
    "dsac": f"agent=dsac env=cartpole {VALUES} {NO_EVAL} agent.random_env_steps=200 trainer.warmup_period=200",
    "r2d2": f"agent=r2d2 {CARTPOLE} {NO_EVAL} agent.sequence_length=8 agent.burn_in=4",
    "rsac": f"agent=rsac {PENDULUM} {NO_EVAL} agent.sequence_length=8 agent.burn_in=4",
    "flashsac": f"agent=flashsac {PENDULUM} {NO_EVAL}",
    "crossq": f"agent=crossq {PENDULUM} {NO_EVAL}",
    "tqc": f"agent=tqc {PENDULUM} {NO_EVAL} agent.exploration=state_dependent agent.noise_interval=16",
}
PATIENCE = "actor_manager.start_timeout_s=600 actor_manager.heartbeat_timeout_s=600"
MODES = {"sync": "trainer=sync", "lockstep": f"trainer=async trainer.lockstep=true n_actors=3 {PATIENCE}"}
CASES = {
    f"{agent}, {mode}": f"{options} {COMMON} {how}"
    for agent, options in AGENTS.items()
    for mode, how in MODES.items()
}

NOT_THE_AGENT = ("actors", "evaluation", "replay")
"""Parts of a checkpoint without learned values."""
STATISTICS = ("sums",)
"""Arrays that are only for the next record."""

Digests = dict[str, str]
"""Shape, type and the first 64 bits of the SHA-256 of each array, by the array's file and name."""


def main() -> None:
    """Compare two trees, or save the digests of one."""
    parser = argparse.ArgumentParser(prog="bench.same_bits", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new", nargs="?")
    parser.add_argument("--save", type=Path, help="write the digests of OLD to this file")
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--jobs", type=int, default=1, help="cases at the same time")
    chosen = parser.parse_args()
    names = [name for name in CASES if chosen.only in name]
    old = _digests(chosen.old, names, chosen.jobs)
    if chosen.save:
        saved = {name: {"options": CASES[name], "arrays": old[name]} for name in names}
        text = json.dumps({"tree": chosen.old, "machine": machine(), "cases": saved}, indent=1)
        chosen.save.write_text(f"{text}\n", encoding="utf-8")
    if chosen.new:
        new = _digests(chosen.new, names, chosen.jobs)
        equal = [_compare(name, old[name], new[name]) for name in names]
        raise SystemExit(0 if all(equal) else 1)


def _digests(source: str, names: list[str], jobs: int) -> dict[str, Digests]:
    """Return the digests of each case, read from a file of --save or computed by training the cases."""
    if source.endswith(".json"):
        return _read(Path(source), names)
    with (
        source_tree(source) as tree,
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(jobs) as pool,
    ):
        runs = [Path(folder) / f"run-{i}" for i in range(len(names))]
        return dict(zip(names, pool.map(lambda name, run: _learn(tree, name, run), names, runs), strict=True))


def _read(path: Path, names: list[str]) -> dict[str, Digests]:
    """Raises SystemExit if a case is missing or had other options."""
    saved = json.loads(path.read_text(encoding="utf-8"))
    if saved["machine"] != machine():
        print(f"{path} was written on {saved['machine']}; this is {machine()}")
    for name in names:
        if saved["cases"].get(name, {}).get("options") != CASES[name]:
            raise SystemExit(f"{path} has no case {name!r} with the options of today")
    return {name: saved["cases"][name]["arrays"] for name in names}


def _learn(tree: Tree, name: str, run_dir: Path) -> Digests:
    """Train one case and return the digests of its last checkpoint."""
    began = time.monotonic()
    tree.train(run_dir, CASES[name].split())
    print(f"{tree.path}: {name} took {time.monotonic() - began:.0f} s", flush=True)
    last = max(path.parent for path in run_dir.glob("checkpoints/*/manifest.json"))
    return {
        f"{file.name.partition('.')[0]}/{key}": f"{array.shape} {array.dtype} {_sha256(array.tobytes())}"
        for file in sorted(last.glob("*.safetensors"))
        if not file.name.startswith(NOT_THE_AGENT)
        for key, array in sorted(load_file(file).items())
        if key not in STATISTICS
    }


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _compare(name: str, old: Digests, new: Digests) -> bool:
    """Print whether all arrays of the old tree are in the new one; the new one may save more."""
    before, after = Counter(old.values()), Counter(new.values())
    missing, more = before - after, after - before
    extra = [array for array, digest in new.items() if digest in more]
    if missing:
        lost = [array for array, digest in old.items() if digest in missing]
        print(f"{name}: DIFFERS in {missing.total()} of {len(old)} arrays: {', '.join(lost)}")
    else:
        print(f"{name}: equal, {len(old)} arrays; more in the new tree: {', '.join(extra) or 'none'}")
    return not missing


if __name__ == "__main__":
    main()
