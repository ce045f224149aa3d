"""The model channel in one process: what a reader gets and when it keeps its model."""

from __future__ import annotations

import numpy as np
import pytest

from border_cli.core.types import ModelInfo
from border_cli.runtime.transport import TRIES, ModelChannel, model_layout


def model(version: int) -> ModelInfo:
    return ModelInfo(
        version,
        {
            "weight": np.full((2, 3), version, np.float32),
            "bias": np.array([version, -version], np.float64),
            "scale": np.array(version, np.int64),
        },
    )


@pytest.fixture
def channel() -> ModelChannel:
    return ModelChannel(model_layout(model(0)))


def test_a_reader_gets_the_newest_publication_once(channel: ModelChannel) -> None:
    """The version does not matter: an evaluator may get an older model after a newer one."""
    assert channel.poll() is None
    assert (channel.publications, channel.polls, channel.torn) == (0, 0, 0)
    for version in (0, 10, 20, 5):
        channel.publish(model(version))
    got = channel.poll()
    assert got is not None and got.version == 5
    assert channel.poll() is None
    for version in (2, 3, 4):
        channel.publish(model(version))
    # an earlier read does not change
    np.testing.assert_array_equal(got.arrays["weight"], np.full((2, 3), 5))
    np.testing.assert_array_equal(got.arrays["bias"], [5.0, -5.0])
    assert got.arrays["scale"].shape == ()
    dtypes = {name: array.dtype.name for name, array in got.arrays.items()}
    assert dtypes == {"weight": "float32", "bias": "float64", "scale": "int64"}


def test_a_read_during_a_publication_is_torn_and_a_later_one_succeeds(channel: ModelChannel) -> None:
    channel.publish(model(1))
    newest = channel._slots[1]
    newest.before[0] = 3  # like a writer that reuses this slot
    assert channel.poll() is None
    assert (channel.polls, channel.torn) == (TRIES, TRIES)
    channel.publish(model(2))
    got = channel.poll()
    assert got is not None and got.version == 2


def test_other_arrays_are_refused(channel: ModelChannel) -> None:
    with pytest.raises(ValueError, match="differ"):
        channel.publish(ModelInfo(1, {"weight": np.zeros(2, np.float32)}))
