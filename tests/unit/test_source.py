"""Patterns that must not occur in the package, because one line would break a contract."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import border_cli

PACKAGE = Path(border_cli.__file__).parent
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")
}
WALL_CLOCK = {"run/summary.py", "run/directory.py", "recorders/tensorboard.py", "recorders/trackers.py"}
"""Where the time of day is written down, for people. Nothing waits by it and no rate is computed from it."""
UNSEEDED = {"runtime/seeding.py"}
"""The seeds of the generators that user code may draw from."""
FORBIDDEN: list[tuple[str, str, set[str]]] = [
    *(
        (pattern, line, WALL_CLOCK)
        for pattern, line in [
            (r"\btime\.time(_ns)?\b", "began = time.time()"),
            (r"\btime\.time(_ns)?\b", "default_factory=time.time_ns"),
            (r"from time import (.*, )?\(?time(_ns)?\b", "from time import monotonic, time"),
            (r"\b(datetime|date)\.(now|utcnow|today)\b", "datetime.now(timezone.utc)"),
            (r"\btime\.(localtime|gmtime|ctime|strftime)\b", "time.strftime('%H')"),
        ]
    ),
    *(
        (pattern, line, UNSEEDED)
        for pattern, line in [
            (r"\burandom\(", "seed = os.urandom(4)"),
            (r"default_rng\(\s*\)|SeedSequence\(\s*\)", "rng = np.random.default_rng()"),
            (
                r"np\.random\.(seed|rand|randn|randint|random|choice|normal|uniform|shuffle)\b",
                "np.random.seed(1)",
            ),
            (r"^\s*(import|from) random\b", "import random"),
            (r"torch\.(seed|initial_seed)\(|(?<!\))\btorch\.manual_seed\(", "torch.manual_seed(0)"),
        ]
    ),
    # functions that execute what they read; multiprocessing pickles only between processes of one run, never to files
    (r"^\s*(import|from) .*pickle", "import cloudpickle", set()),
    (r"^\s*(import|from) .*(marshal|shelve|dill|joblib)\b", "from joblib import load", set()),
    (r"pickle\.(load|Unpickler)", "pickle.loads(data)", set()),
    (r"weights_only\s*=\s*False", "torch.load(f, weights_only=False)", set()),
    (r"torch\.load\(", "torch.load(f)", set()),
    (r"allow_pickle\s*=\s*True", "np.load(f, allow_pickle=True)", set()),
    (r"yaml\.(unsafe_|full_)?load(_all)?\(", "yaml.load(text)", set()),
    (r"(?<![\w.])eval\((?!self\b|\))", "eval(text)", set()),
    (r"(?<![\w.])exec\(", "exec(code)", set()),
    (r"\bos\.(system|popen)\(|shell\s*=\s*True", "os.system(command)", set()),
]
"""Patterns, a line that each finds, and the files that may have such lines."""


@pytest.mark.parametrize(("pattern", "line", "allowed"), FORBIDDEN)
def test_g4_h4_i1_no_line_has_a_forbidden_pattern(pattern: str, line: str, allowed: set[str]) -> None:
    assert set(SOURCES) > WALL_CLOCK and len(SOURCES) > 50
    assert re.search(pattern, line)
    files = {
        name for name, text in SOURCES.items() if any(re.search(pattern, line) for line in text.splitlines())
    }
    assert files <= allowed


def test_public_names_are_documented_and_import_border_cli_offers_them() -> None:
    pages = (Path(__file__).parents[2] / "docs" / "reference").glob("python-*.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = re.findall(r"^::: border_cli\.(?:.*\.)?(\w+)$", text, re.MULTILINE)
    assert sorted([*named, "__version__"]) == border_cli.__all__
    assert not [name for name in named if not inspect.getdoc(getattr(border_cli, name))]
