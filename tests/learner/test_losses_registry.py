"""whippletree/learner/losses/registry.py and config.py"""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from typing import Any

import pytest
import torch
from losses_parts import random_tokens

from whippletree.configuration import convert, dump
from whippletree.errors import ConfigurationError
from whippletree.learner.config import LearnerConfig
from whippletree.learner.losses.config import (
    CorrectionConfig,
    CustomLoss,
    LossConfig,
    PPOLoss,
    check_correction,
    needs_all_rows,
)
from whippletree.learner.losses.policy import ppo_clip
from whippletree.learner.losses.registry import FUNCTIONS, load_loss

STRUCTS = [kind for kind in typing.get_args(LossConfig) if kind is not CustomLoss]
NAMES = [kind.__struct_config__.tag for kind in STRUCTS]


def learner(**settings: Any) -> LearnerConfig:
    return convert(LearnerConfig, settings, "run.toml")


@pytest.mark.parametrize("kind", STRUCTS, ids=NAMES)
def test_every_loss_has_one_function_that_takes_its_settings(kind: Any):
    keywords = {
        name for name, found in inspect.signature(FUNCTIONS[kind]).parameters.items() if found.kind == found.KEYWORD_ONLY
    }
    assert keywords == set(kind.__struct_fields__)
    assert len(set(FUNCTIONS.values())) == len(FUNCTIONS) == len(STRUCTS)
    load_loss(kind())


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_named_in_the_run_file(name: str):
    assert type(learner(loss={"name": name}).loss).__struct_config__.tag == name  # type: ignore[attr-defined]


def test_settings_reach_the_function():
    tokens = random_tokens(0)
    loss = load_loss(learner(loss={"name": "ppo", "clip_low": 0.1, "clip_high": 0.05}).loss)
    assert torch.equal(loss(tokens).per_token, ppo_clip(tokens, clip_low=0.1, clip_high=0.05).per_token)


def test_the_default_is_ppo_with_both_widths_a_fifth():
    assert learner().loss == PPOLoss(clip_low=0.2, clip_high=0.2)
    assert learner().old_logprobs == "sampler"
    assert "[loss]" in dump(LearnerConfig())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": {"name": "pro"}}, "learner.loss.name is 'pro'.*ppo|loss.name is 'pro'"),
        ({"loss": {"clip_low": 0.1}}, "loss.name is missing"),
        ({"loss": {"name": "ppo", "clip_hihg": 0.1}}, "loss.clip_high"),
        ({"loss": {"name": "reinforce", "clip_low": 0.1}}, "unknown key loss.clip_low"),
        ({"loss": {"name": "dual-clip", "bound": 0.5}}, "loss.bound"),
        ({"clip_low": 0.1}, "unknown key clip_low"),
        ({"kl": {"estimator": "k4"}}, "k3"),
    ],
)
def test_wrong_settings_name_the_key(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        learner(**settings)


def test_a_loss_of_ones_own():
    tokens = random_tokens(0)
    loss = load_loss(CustomLoss(function="my_losses:halved", settings={"factor": 0.25}))
    assert torch.equal(loss(tokens).per_token, -0.25 * tokens.advantages * tokens.logprobs)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("my_losses", {}, "is not of the form"),
        ("my_losses:", {}, "is not of the form"),
        ("my_losses:NOT_A_FUNCTION", {}, "names no function"),
        ("my_losses:halvde", {}, "halvde"),
        ("no_such_module:loss", {}, "no_such_module"),
        ("my_losses:halved", {"faktor": 1.0}, "faktor"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused_at_once(function: str, settings: dict[str, float], message: str):
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_loss(CustomLoss(function=function, settings=settings))
    assert caught.value.next_step


@pytest.mark.parametrize(("function", "message"), [("my_losses:scalar", "Tensor"), ("my_losses:too_short", r"\[23\].*\[24\]")])
def test_what_a_function_gives_back_is_checked(function: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        load_loss(CustomLoss(function=function))(random_tokens(0))


@pytest.mark.parametrize(
    ("loss", "correction", "old", "message"),
    [
        ({"name": "ppo"}, {"truncate": "token"}, "sampler", 'count twice.*old_logprobs = "learner"'),
        ({"name": "masked-importance"}, {"truncate": "token"}, "learner", "count twice"),
        ({"name": "sft"}, {"mask": "token"}, "learner", "sft"),
        ({"name": "distill-forward"}, {"truncate": "sequence"}, "learner", "distill-forward"),
        ({"name": "ppo"}, {"mask": "token", "mask_low": 2.0, "mask_high": 1.0}, "learner", "mask_low"),
        ({"name": "ppo"}, {"truncate": "token"}, "learner", None),
        ({"name": "ppo"}, {"mask": "geometric"}, "sampler", None),
        ({"name": "reinforce"}, {"truncate": "token", "mask": "token"}, "sampler", None),
        ({"name": "cispo"}, {"truncate": "sequence"}, "learner", None),
    ],
)
def test_combinations_that_count_twice_are_refused(loss: Any, correction: Any, old: str, message: str | None):
    config = learner(loss=loss, correction=correction, old_logprobs=old)
    if message is None:
        config.check()
    else:
        with pytest.raises(ConfigurationError, match=message):
            config.check()


def test_losses_that_learn_without_advantages_keep_all_rows():
    assert [name for kind, name in zip(STRUCTS, NAMES, strict=True) if needs_all_rows(kind())] == [
        "sft", "distill-reverse", "distill-forward",
    ]  # fmt: skip
    assert not learner().trains_all_rows
    assert learner(kl={"coefficient": 0.1}).trains_all_rows
    assert learner(entropy_bonus=0.1).trains_all_rows
    assert learner(critic={"kind": "head"}).trains_all_rows
    assert learner(loss={"name": "custom", "function": "my_losses:halved"}).trains_all_rows
    assert not learner(loss={"name": "custom", "function": "my_losses:halved", "all_rows": False}).trains_all_rows


def test_settings_are_checked_without_torch():
    code = """
import sys
from whippletree.learner.config import LearnerConfig
LearnerConfig().check()
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_mask_of_a_correction_needs_no_learner_logprobs():
    check_correction(PPOLoss(), CorrectionConfig(mask="sequence"), "sampler")
