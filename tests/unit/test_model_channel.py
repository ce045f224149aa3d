"""The model channel inside one process: what a reader gets, and when it keeps what it has."""

from __future__ import annotations

import numpy as np
import pytest

from border_cli.core.protocols import ModelInfo
from border_cli.transport.model_channel import TRIES, ModelChannel, model_layout


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


def test_nothing_before_the_first_publication(channel: ModelChannel) -> None:
    assert channel.poll() is None
    assert (channel.publications, channel.polls, channel.torn) == (0, 0, 0)


def test_the_latest_wins_and_comes_once(channel: ModelChannel) -> None:
    for version in (0, 10, 20):
        channel.publish(model(version))
    got = channel.poll()
    assert got is not None
    assert got.version == 20
    np.testing.assert_array_equal(got.arrays["weight"], np.full((2, 3), 20))
    np.testing.assert_array_equal(got.arrays["bias"], [20.0, -20.0])
    assert got.arrays["scale"].shape == ()
    assert {name: a.dtype.name for name, a in got.arrays.items()} == {
        "weight": "float32",
        "bias": "float64",
        "scale": "int64",
    }
    assert channel.poll() is None


def test_what_was_read_stays_as_it_is(channel: ModelChannel) -> None:
    channel.publish(model(1))
    got = channel.poll()
    for version in (2, 3, 4):
        channel.publish(model(version))
    assert got is not None
    np.testing.assert_array_equal(got.arrays["weight"], np.full((2, 3), 1))


def test_a_publication_under_way_is_torn_and_the_reader_goes_on(channel: ModelChannel) -> None:
    channel.publish(model(1))
    newest = channel._slots[1]
    newest.before[0] = 3  # as if the writer had come round to this slot again
    assert channel.poll() is None
    assert (channel.polls, channel.torn) == (TRIES, TRIES)
    channel.publish(model(2))
    got = channel.poll()
    assert got is not None
    assert got.version == 2


def test_other_arrays_are_refused(channel: ModelChannel) -> None:
    with pytest.raises(ValueError, match="differ"):
        channel.publish(ModelInfo(1, {"weight": np.zeros(2, np.float32)}))


def test_versions_never_go_back(channel: ModelChannel) -> None:
    channel.publish(model(5))
    channel.publish(model(5))
    with pytest.raises(ValueError, match="version 4 after 5"):
        channel.publish(model(4))
