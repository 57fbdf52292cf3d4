"""A harness that depends on its settings has an object per source; the others share one."""

from __future__ import annotations

from pathlib import Path

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
