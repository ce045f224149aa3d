"""A chunk that is missing or comes twice is noticed, wherever it was lost."""

from __future__ import annotations

import pytest

from border_cli.transport.ring import Ring
from tests.fakes import counting_actors
from tests.faults.actors import audit, running  # noqa: F401 - audit is a fixture
from tests.faults.processes import wait_until


@pytest.mark.usefixtures("audit")
@pytest.mark.parametrize(
    ("wrong", "message"), [("lost", "chunk 1 came, not 0"), ("doubled", "chunk 0 came, not 1")]
)
def test_a2_a_chunk_that_is_lost_or_doubled_is_a_defect(
    monkeypatch: pytest.MonkeyPatch, wrong: str, message: str
) -> None:
    pop_all = Ring.pop_all

    def badly(ring: Ring) -> list[object]:
        chunks = pop_all(ring)
        return chunks[1:] if wrong == "lost" else [*chunks[:1], *chunks]

    with running(counting_actors(n_buffer=4), n_actors=1) as manager:
        manager.grant([40])
        slot = manager._slots[0]
        wait_until(lambda: slot.state.words == "waiting for credit", "all of it to be handed over")
        with monkeypatch.context() as patch:
            patch.setattr(Ring, "pop_all", badly)
            with pytest.raises(RuntimeError, match=message):
                manager.collect()
