"""whippletree/loop/grid/config.py: what a grid file may say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whippletree.configuration import convert, dump, load
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig, check_same, run_config

DATA = {
    "models": [
        {"name": "tiny", "model": {"kind": "tiny"}},
        {"name": "api", "engine": {"kind": "hosted", "base_url": "http://127.0.0.1:1/v1", "model": "m"}},
    ],
    "harnesses": [{"name": "text", "harness": {"settings": {"mode": "text"}}}, {"name": "tools"}],
    "sources": [{"name": "trail", "tasks": {"kind": "trail"}}],
}


RUBRIC = {
    "name": "style",
    "judge": {"base_url": "http://127.0.0.1:1/v1", "model": "m"},
    "criteria": [{"name": "plain", "text": "it is plain"}],
}


def grid(**changes) -> GridConfig:
    return convert(GridConfig, DATA | changes, "test")


def refused(**changes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        grid(**changes).check()
    return str(caught.value)


def test_names_are_told_apart_and_can_stand_in_paths():
    grid().check()
    assert "two of harnesses are named a" in refused(harnesses=[{"name": "a"}, {"name": "a"}])
    assert "no models" in refused(models=[])
    for name in ("../up", "a.b", "", "a b", "-a"):
        assert "models.0.name" in refused(models=[{"name": name, "model": {"kind": "tiny"}}])


def test_a_model_without_a_directory_is_behind_an_api():
    assert "x has no `model`" in refused(models=[{"name": "x"}])
    asks = {"kind": "hosted", "base_url": "http://h/v1", "model": "m", "extra": {"return_token_ids": True}}
    assert "token ids" in refused(models=[{"name": "x", "engine": asks}])


def test_a_tiny_model_is_refused_on_a_family_that_it_does_not_know():
    assert "differs" in refused(sources=[{"name": "trail", "tasks": {"kind": "trail", "family": {"codes": 90}}}])


def test_a_reward_that_is_no_expression_is_refused_with_its_key():
    assert "sources.0" in refused(sources=[{"name": "trail", "tasks": {"kind": "trail"}, "reward": "1 +"}])


def test_one_database_cannot_hold_several_records():
    assert "store.url" in refused(store={"url": "postgresql://u@h/d"})


def test_a_dumped_grid_loads_equal(tmp_path: Path):
    path = tmp_path / "grid.toml"
    path.write_text(dump(grid()))
    assert load(GridConfig, path) == grid()


def test_pass_at_k_is_by_default_of_one_and_of_all_samples():
    assert grid().pass_at == (1,)
    assert grid(grid={"samples": 8}).pass_at == (1, 8)
    assert grid(grid={"samples": 8, "pass_at": [4, 2]}).pass_at == (1, 2, 4)


def test_each_model_has_a_run_file_with_each_harness_on_each_source(tmp_path: Path):
    config = grid(sampling={"temperature": 0.5})
    run = run_config(config, config.models[0])
    assert [source.name for source in run.sources] == ["trail.text", "trail.tools"]
    assert [source.harness.settings for source in run.sources] == [{"mode": "text"}, {}]
    assert (run.loop.steps, run.sampling.temperature) == (0, 0.5)
    path = tmp_path / "config.toml"
    path.write_text(dump(run))
    assert load(RunConfig, path) == run
    hosted = run_config(config, config.models[1], "/stand-in")
    assert (hosted.rendering.policy, hosted.model.path) == ("engine", "/stand-in")


def test_a_grid_may_grow_but_what_was_evaluated_stays_what_it_was():
    before = grid()
    check_same(before, grid(models=[*DATA["models"], {"name": "more", "model": {"kind": "tiny"}}], grid={"samples": 4}))
    check_same(before, grid(models=DATA["models"][:1], control={"concurrency": 3}))
    changes = {
        "harnesses: text": {"harnesses": [{"name": "text"}, {"name": "tools"}]},
        "models: tiny": {"models": [{"name": "tiny", "model": {"kind": "smollm2-135m"}}]},
        "sources: trail": {"sources": [{"name": "trail", "tasks": {"kind": "trail"}, "limit": 3}]},
        "the sampling of tiny": {"sampling": {"temperature": 0.1}},
    }
    for what, change in changes.items():
        with pytest.raises(ConfigurationError, match=what):
            check_same(before, grid(**change))
    judged = {"control": {"reward": "0.5 * reward + 0.5 * style", "rubrics": [RUBRIC]}}
    for what, change in {
        "control.reward": {"control": {"reward": "2 * reward"}},
        "control.agent_timeout": {"control": {"agent_timeout": "mask"}},
        "what control.rubrics say of trail": {"control": judged["control"] | {"rubrics": [RUBRIC | {"instructions": "Else."}]}},
    }.items():
        with pytest.raises(ConfigurationError, match=what):
            check_same(grid(**judged) if "rubrics" in what else before, grid(**change))
    patient = judged["control"] | {"rubrics": [RUBRIC | {"at_once": 1, "tries": 9}]}
    check_same(grid(**judged), grid(control=patient))
    own = [msgspec.to_builtins(model) for model in before.models]
    check_same(before, grid(models=own))


def test_a_grid_names_each_variation_as_a_harness():
    with pytest.raises(ConfigurationError, match=r"harnesses\.0: variants are for training"):
        grid(harnesses=[{"name": "a", "harness": {"variants": {"terse": {}}}}])
