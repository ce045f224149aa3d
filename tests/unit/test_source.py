"""What must stand nowhere in the package, because one careless line would break a promise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import border_cli

PACKAGE = Path(border_cli.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")
}
WALL_CLOCK = {"runs/provenance.py", "runs/directory.py", "recorders/tensorboard.py"}
"""Where the time of day is written down, for people. Nothing waits by it and no rate is computed from it."""

UNSEEDED = {"room.py"}
"""What is written to a disk to see whether it takes it."""


def found(pattern: str) -> dict[str, list[str]]:
    """Lines of each file in which the pattern is found."""
    lines = {
        name: [line.strip() for line in text.splitlines() if re.search(pattern, line)]
        for name, text in SOURCES.items()
    }
    return {name: hits for name, hits in lines.items() if hits}


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"\btime\.time(_ns)?\b", "began = time.time()"),
        (r"\btime\.time(_ns)?\b", "default_factory=time.time_ns"),
        (r"from time import (.*, )?\(?time(_ns)?\b", "from time import monotonic, time"),
        (r"\b(datetime|date)\.(now|utcnow|today)\b", "datetime.now(timezone.utc)"),
        (r"\btime\.(localtime|gmtime|ctime|strftime)\b", "time.strftime('%H')"),
    ],
)
def test_h4_the_wall_clock_is_for_records_only(pattern: str, line: str) -> None:
    assert re.search(pattern, line)
    assert set(found(pattern)) <= WALL_CLOCK


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"\burandom\(", "seed = os.urandom(4)"),
        (r"default_rng\(\s*\)|SeedSequence\(\s*\)", "rng = np.random.default_rng()"),
        (
            r"np\.random\.(seed|rand|randn|randint|random|choice|normal|uniform|shuffle)\b",
            "np.random.seed(1)",
        ),
        (r"^\s*(import|from) random\b", "import random"),
        (r"torch\.(seed|initial_seed)\(|(?<!\))\btorch\.manual_seed\(", "torch.manual_seed(0)"),
    ],
)
def test_g4_every_random_number_has_a_seed(pattern: str, line: str) -> None:
    assert re.search(pattern, line)
    assert set(found(pattern)) <= UNSEEDED


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"^\s*(import|from) .*pickle", "import cloudpickle"),
        (r"^\s*(import|from) .*(marshal|shelve|dill|joblib)\b", "from joblib import load"),
        (r"pickle\.(load|Unpickler)", "pickle.loads(data)"),
        (r"weights_only\s*=\s*False", "torch.load(f, weights_only=False)"),
        (r"torch\.load\(", "torch.load(f)"),
        (r"allow_pickle\s*=\s*True", "np.load(f, allow_pickle=True)"),
        (r"yaml\.(unsafe_|full_)?load(_all)?\(", "yaml.load(text)"),
        (r"(?<![\w.])eval\((?!self\b|\))", "eval(text)"),
        (r"(?<![\w.])exec\(", "exec(code)"),
        (r"\bos\.(system|popen)\(|shell\s*=\s*True", "os.system(command)"),
    ],
)
def test_i1_nothing_that_is_read_can_be_executed(pattern: str, line: str) -> None:
    """Between a run's own processes multiprocessing pickles what it hands over; no file takes that way."""
    assert re.search(pattern, line)
    assert found(pattern) == {}


def test_the_sources_are_there() -> None:
    assert set(SOURCES) > WALL_CLOCK
    assert len(SOURCES) > 50
