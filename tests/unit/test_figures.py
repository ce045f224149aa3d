"""Numbers as short text."""

from __future__ import annotations

import math

import pytest

from border_cli.recorders import figures

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (NAN, "-"),
        (INF, "-"),
        (0, "0"),
        (31_000, "31,000"),
        (9_999_999, "9,999,999"),
        (12_345_678, "12.3M"),
        (999_900_000, "1G"),
        (10**18, "1E"),
        (1e30, "1e+12E"),
    ],
)
def test_count(value: float | None, text: str) -> None:
    assert figures.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (NAN, "nan"),
        (-INF, "-inf"),
        (0, "0.00"),
        (0.00123, "0.0012"),
        (-0.5, "-0.50"),
        (2.003, "2.00"),
        (487.25, "487.2"),
        (-1234.5, "-1,234"),
        (1e300, "1e+300"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert figures.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (NAN, "-"), (0.0, "0.00"), (12.34, "12.3"), (312.4, "312"), (2e7, "20M")]
)
def test_rate(value: float | None, text: str) -> None:
    assert figures.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (NAN, "-"), (0.0, "0%"), (0.634, "63%"), (1.0, "100%")]
)
def test_share(value: float | None, text: str) -> None:
    assert figures.share(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (INF, "-"),
        (-1.0, "-"),
        (0.9, "0:00:00"),
        (3_723.0, "1:02:03"),
        (183_845.0, "2d 03:04:05"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    assert figures.duration(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (4_000_000, "3.8 MiB"), (2**80, "1073741824.0 PiB")],
)
def test_size(n_bytes: int, text: str) -> None:
    assert figures.size(n_bytes) == text


def test_a_noun_takes_an_s_unless_there_is_exactly_one() -> None:
    assert [figures.counted(n, "actor") for n in (0, 1, 8)] == ["0 actors", "1 actor", "8 actors"]
