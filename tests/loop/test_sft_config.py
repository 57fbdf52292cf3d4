"""whippletree/loop/sft/config.py: what an SFT file may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.configuration import convert, dump, load
from whippletree.errors import ConfigurationError
from whippletree.learner.losses.config import SFTLoss
from whippletree.loop.sft.config import SftConfig


def config(**changes) -> SftConfig:
    return convert(SftConfig, {"data": ["runs/demo"]} | changes, "test")


def test_the_loss_is_that_of_the_replies_whether_it_is_named_or_not():
    for learner in ({}, {"learning_rate": 1e-3}, {"loss": {"name": "sft"}}):
        found = config(learner=learner)
        found.check()
        assert found.optimiser.loss == SFTLoss()
    assert config(learner={"learning_rate": 1e-3}).optimiser.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": []}, "data is empty"),
        ({"learner": {"loss": {"name": "cispo"}}}, "learner.loss"),
        ({"learner": {"critic": {"kind": "head"}}}, "learner.critic"),
        ({"learner": {"ranks": {"data": 2}}}, "one process"),
    ],
)
def test_what_the_loop_does_not_do_is_refused(changes, said):
    with pytest.raises(ConfigurationError, match=said):
        config(**changes).check()


def test_a_dumped_file_loads_equal(tmp_path: Path):
    path = tmp_path / "sft.toml"
    path.write_text(dump(config(export={"balance": True})))
    assert load(SftConfig, path) == config(export={"balance": True})
