"""`run_all` calls every function, even after errors."""

from __future__ import annotations

from functools import partial

import pytest

from border_cli.runtime.stopping import run_all


def test_all_functions_are_called_in_order_and_no_error_is_lost() -> None:
    called: list[str] = []

    def stage(name: str, fails: bool = False) -> None:
        called.append(name)
        if fails:
            raise ValueError(name)

    with pytest.raises(ValueError) as error:
        try:
            raise RuntimeError("what it all began with")
        finally:
            run_all([partial(stage, name, fails=name in "bd") for name in "abcd"])
    assert called == ["a", "b", "c", "d"]
    last = error.value
    before = last.__context__
    assert before is not None
    assert [str(last), str(before), str(before.__context__)] == ["d", "b", "what it all began with"]
    run_all([])
    with pytest.raises(ValueError, match="d"):  # one for each of many actors
        run_all([partial(stage, "x")] * 5_000 + [partial(stage, "d", fails=True)])
