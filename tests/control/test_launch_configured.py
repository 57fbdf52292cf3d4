"""A harness that depends on its settings has an object per source; the others share one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whippletree.control.config import ControlConfig, HarnessBinding
from whippletree.control.launch import Launchers
from whippletree.errors import ConfigurationError
from whippletree.types import RolloutSpec


def spec(source: str, harness: str) -> RolloutSpec:
    return RolloutSpec(rollout_id="r", group_id="g", source=source, task_id="t", task_path="", harness=harness)


def binding(source: str, here: str, **settings: object) -> HarnessBinding:
    return HarnessBinding(
        harness="command",
        source=source,
        launch="process",
        settings={"argv": ["/bin/true"], "read_only": [[here, "/opt/agent"]], **settings},
    )


def test_sources_with_settings_of_their_own_see_their_own_folders(tmp_path: Path):
    both = [binding("a", "/srv/a"), binding("b", "/srv/b")]
    mini = [HarnessBinding(harness="mini-swe-agent", source=source, launch="process") for source in ("a", "b")]
    launchers = Launchers([*both, *mini], ControlConfig(), tmp_path)
    assert launchers.find(spec("a", "command"))[0].read_only == (("/srv/a", "/opt/agent"),)
    assert launchers.find(spec("b", "command"))[0].read_only == (("/srv/b", "/opt/agent"),)
    assert launchers.find(spec("a", "mini-swe-agent"))[0] is launchers.find(spec("b", "mini-swe-agent"))[0]
    with pytest.raises(ConfigurationError, match="no harness 'command'"):
        launchers.find(spec("c", "command"))


def test_wrong_settings_are_found_before_anything_runs(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="success_codes"):
        Launchers([binding("a", "/srv/a", sucess_codes=[0])], ControlConfig(), tmp_path)


def test_a_rollout_runs_under_the_settings_of_its_variant(tmp_path: Path):
    varied = msgspec.structs.replace(
        binding("a", "/srv/a"), variants={"other": {"read_only": [["/srv/other", "/opt/agent"]]}, "same": {}}
    )
    terse = HarnessBinding(
        harness="mini-swe-agent", source="a", launch="process", settings={"step_limit": 4}, variants={"long": {"step_limit": 9}}
    )
    launchers = Launchers([varied, terse], ControlConfig(), tmp_path)

    def found(harness: str, variant: str):
        return launchers.find(msgspec.structs.replace(spec("a", harness), variant=variant))

    assert [found("command", name)[0].read_only[0][0] for name in ("", "same", "other")] == ["/srv/a", "/srv/a", "/srv/other"]
    assert found("command", "other")[1].settings["argv"] == ["/bin/true"]
    assert [found("mini-swe-agent", name)[1].settings["step_limit"] for name in ("", "long")] == [4, 9]
    assert found("mini-swe-agent", "")[0] is found("mini-swe-agent", "long")[0]
    with pytest.raises(ConfigurationError, match="no variant 'short' of command"):
        found("command", "short")


def test_a_wrong_variant_of_a_configured_harness_is_found_before_anything_runs(tmp_path: Path):
    wrong = msgspec.structs.replace(binding("a", "/srv/a"), variants={"x": {"sucess_codes": [0]}})
    with pytest.raises(ConfigurationError, match="success_codes"):
        Launchers([wrong], ControlConfig(), tmp_path)
