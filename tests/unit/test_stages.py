"""What has to be done in any case."""

from __future__ import annotations

import pytest

from border_cli.core.stages import run_all


def test_all_are_called_in_their_order_and_no_error_is_lost() -> None:
    called: list[str] = []

    def stage(name: str, fails: bool = False) -> None:
        called.append(name)
        if fails:
            raise ValueError(name)

    with pytest.raises(ValueError) as error:
        try:
            raise RuntimeError("what it all began with")
        finally:
            run_all(
                [lambda: stage("a"), lambda: stage("b", True), lambda: stage("c"), lambda: stage("d", True)]
            )
    assert called == ["a", "b", "c", "d"]
    last = error.value
    assert str(last) == "d"
    assert str(last.__context__) == "b"
    assert last.__context__ is not None
    assert str(last.__context__.__context__) == "what it all began with"


def test_nothing_is_nothing() -> None:
    run_all([])
