"""`make results`: the runs of `bench/table_of_runs.py`, evaluated on new episodes. Writes docs/results/.

    python -m bench.results [--only TEXT] [--page-only] [--list]

It takes hours. Runs are trained one after the other, and each is printed with its expected minutes. After an interruption
the same call continues. The results of finished runs are stored in bench/results/; a run is not repeated while its
configuration is the same. Ends with 1 if a row misses its bar.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import runs
from bench.results_page import write_pages
from bench.table_of_runs import ROWS, Row
from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.config.convert import to_plain
from border_cli.config.validate import unused
from border_cli.core.metrics import SCORE
from border_cli.report.runs import Curve, read_run

KEPT = Path(__file__).parent / "results"
RUNS = Path("runs/results")
EPISODES_OF_RISE = 30
_UNLIKE = ("name", "seed", "plan", "debug", "recorder", "checkpoint", "preset")
"""Sections that do not affect learning, or that are part of the name."""
_GONE = {"prioritized": {"initial_priority": "max", "normalizer": "batch"}}
"""Keys of kinds of buffers that no longer exist, with the value that stands for what the buffer does now."""
_GONE_OF_ENV = {"nonfinite": "error"}
"""The same of the environment."""
_NEW = {
    "agent": {
        **{"adam_beta1": 0.9, "critic_hidden": [], "norm": "none", "privileged_obs": []},
        **{"gru": None, "sequence_length": 40, "burn_in": 20, "priority_max_share": 0.9},
        **{"encoder": "convolutions", "encoder_kwargs": {}, "spectral_norm": False},
        **{"munchausen": None, "munchausen_tau": 0.03, "munchausen_clip": -1.0},
        **{"weight_decay": 0.0, "reset_interval": None, "critic_subset": None, "critic_dropout": 0.0},
    },
    "buffer": {"her": "none", "her_ratio": 0.8},
    "env": {"vector": False},
}
"""Newer keys of agents, buffers and environments, with the value that stands for what they did before."""


@dataclass(frozen=True)
class Cell:
    """One run of a row."""

    row: Row
    seed: int

    @property
    def name(self) -> str:
        """Base name of the files of this cell."""
        return f"{self.row.name}_seed{self.seed}"

    @property
    def args(self) -> list[str]:
        """Arguments of `border-train`."""
        row = self.row
        return [
            f"agent={row.agent}",
            f"env={row.env}",
            f"seed={self.seed}",
            *row.args,
            "checkpoint.keep=1",
        ]


def main() -> None:
    """Run the missing cells and write the pages."""
    parser = argparse.ArgumentParser(prog="make results", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only",
        default="",
        help="runs whose name has one of these in it, such as cartpole_dqn,iqn_n_actors2_seed1",
    )
    parser.add_argument("--page-only", action="store_true", help="write the pages from what is there")
    parser.add_argument("--list", action="store_true", help="show what is missing, and run nothing")
    chosen = parser.parse_args()
    wanted = [word for word in chosen.only.split(",") if word] or [""]
    cells = [cell for cell in _all_cells() if any(word in cell.name for word in wanted)]
    missing = [cell for cell in cells if _is_missing(cell)]
    minutes = sum(cell.row.minutes for cell in missing)
    print(f"{len(cells) - len(missing)} of {len(cells)} runs are there; about {minutes:.0f} minutes left")
    for cell in [] if chosen.page_only else missing:
        print(f"{cell.name}: about {cell.row.minutes:.1f} minutes", flush=True)
        if chosen.list:
            continue
        result = run(cell)
        print(
            f"{cell.name}: {result['evaluation']['mean']:.1f} after {result['minutes']:.1f} minutes",
            flush=True,
        )
        write_pages(_all_stored())
    if not chosen.list and not write_pages(_all_stored()):
        raise SystemExit(1)


def _all_cells() -> list[Cell]:
    return [Cell(row, seed) for row in ROWS for seed in row.seeds]


def run(cell: Cell) -> dict[str, Any]:
    """Train or resume a cell, evaluate its best and its last model, and store the result."""
    run_dir, config = RUNS / cell.name, row_hash(cell.row)
    if _is_begun(run_dir, config):
        if not _is_done(run_dir):
            runs.train(run_dir, [f"resume={run_dir}"], resumes=True)
    else:
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        (RUNS / f"{cell.name}.config").write_text(config, encoding="utf-8")
        runs.train(run_dir, cell.args)
    began = time.monotonic()
    for model in ("best", "last"):
        runs.evaluate(run_dir, [f"checkpoint={model}", f"episodes={cell.row.episodes}"])
    result = _result(cell, run_dir, config, time.monotonic() - began)
    KEPT.mkdir(exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True)
    (KEPT / f"{cell.name}.json").write_text(f"{text}\n", encoding="utf-8")
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)  # the replay is large, and best/ is enough
    return result


@functools.cache
def row_hash(row: Row) -> str:
    """Return the hash of the configuration that all runs of the row share."""
    return config_hash(Cell(row, row.seeds[0]).args)


def config_hash(args: list[str]) -> str:
    """Return the hash of the resolved configuration of these arguments, without keys that do not affect learning."""
    config = Composer(parse_overrides(args)).compose().config
    kept = {name: value for name, value in to_plain(config).items() if name not in _UNLIKE}
    kept["env"].pop("type")
    for key, reason, _ in unused(config):  # so that a new switch that is off does not change the hash
        group, _, name = key.partition(".")
        if group in ("agent", "env") and reason.startswith(f"with {group}."):
            kept[group].pop(name, None)
    for group, new in _NEW.items():
        kept[group] = {name: value for name, value in kept[group].items() if new.get(name, ...) != value}
    kept["buffer"] |= _GONE.get(config.buffer.type, {})
    kept["env"] |= _GONE_OF_ENV
    if config.init_from is None:
        kept.pop("init_from_parts")
    kept = {name: value for name, value in kept.items() if value is not None}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def _result(cell: Cell, run_dir: Path, config: str, evaluation_s: float) -> dict[str, Any]:
    summary = _json(run_dir / "summary.json")
    (best,), (last,) = (
        (run_dir / "eval").glob(f"{model}-*episodes{cell.row.episodes}.json") for model in ("best", "step")
    )
    evaluation, curves = _json(best), read_run(run_dir).curves
    return {
        "cell": cell.name,
        "row": cell.row.name,
        "args": cell.args,
        "config": config,
        "commit": _git("rev-parse", "--short", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", "border_cli", "conf")),
        "minutes": round((summary["seconds"] + evaluation_s) / 60, 2),  # of all launches of the run
        "cpu_minutes": round(float(curves["throughput/samples_total"].cpu_seconds[-1]) / 60, 2),
        "env_steps": summary["counters"]["env_steps"],
        "opt_steps": summary["counters"]["opt_steps"],
        "last": _json(last)["mean"],
        "last_episodes": cell.row.episodes,
        "best_opt_steps": evaluation["opt_steps"],
        "evaluation": {name: evaluation[name] for name in ("episodes", "mean", "std", "min", "max")},
        "rise": _rise(run_dir),
        "curve": _rows(curves[SCORE]),
    }


def _rows(curve: Curve) -> list[list[float]]:
    """Return env steps, seconds, CPU-seconds and mean return of each evaluation."""
    columns = (curve.env_steps, curve.seconds, curve.cpu_seconds, curve.values)
    return [[round(float(number), 2) for number in row] for row in zip(*columns, strict=True)]


def _rise(run_dir: Path) -> float:
    """Return the mean return of the last 30 training episodes minus that of the first 30, estimated from the records."""
    ended = [
        (int(record["train/episodes"]), record["train/episode_return"])
        for record in runs.records(run_dir)
        if record.get("train/episodes")
    ]
    return round(_mean_of_first(reversed(ended)) - _mean_of_first(ended), 3)


def _mean_of_first(ended: Iterable[tuple[int, float]]) -> float:
    """Return the mean return of the first 30 episodes. ended: (number of episodes, mean return) of each record."""
    total, n = 0.0, 0
    for episodes, mean in ended:
        counted = min(episodes, EPISODES_OF_RISE - n)
        total, n = total + counted * mean, n + counted
    return total / max(n, 1)


def _is_begun(run_dir: Path, config: str) -> bool:
    """Whether the directory has a run with exactly this configuration, which may lack its evaluation alone."""
    noted = RUNS / f"{run_dir.name}.config"
    same = noted.exists() and noted.read_text(encoding="utf-8") == config
    return same and any((run_dir / "checkpoints").glob("step-*/manifest.json"))


def _is_done(run_dir: Path) -> bool:
    summary = run_dir / "summary.json"
    return summary.exists() and _json(summary)["status"] == "done"


def _stored(cell: Cell) -> dict[str, Any] | None:
    """Return the stored result with "older", whether its configuration was another one; None if there is no result."""
    path = KEPT / f"{cell.name}.json"
    if not path.exists():
        return None
    result = _json(path)
    return result | {"older": result["config"] != row_hash(cell.row)}


def _is_missing(cell: Cell) -> bool:
    """Whether there is no result of the present configuration."""
    result = _stored(cell)
    return result is None or result["older"]


def _all_stored() -> dict[str, list[dict[str, Any]]]:
    """Return the stored results by row, in the order of the seeds: older ones where a row has no others."""
    results = {}
    for row in ROWS:
        stored = [result for seed in row.seeds if (result := _stored(Cell(row, seed))) is not None]
        results[row.name] = [result for result in stored if not result["older"]] or stored
    return results


def _git(*args: str) -> str:
    return subprocess.run(["git", *args], capture_output=True, text=True, check=True).stdout.strip()


def _json(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


if __name__ == "__main__":
    main()
