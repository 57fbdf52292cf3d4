"""Settings of the control room."""

from __future__ import annotations

import pytest

from whippletree.configuration import convert, field_docs
from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding, NetworkConfig, PoolConfig, reward_rule
from whippletree.control.policy import RestartPolicy
from whippletree.control.process import gateway_address, sandbox_prefix
from whippletree.control.spec import ControllerSpec
from whippletree.errors import ConfigurationError

KINDS = [ControlConfig, DeadlineConfig, NetworkConfig, PoolConfig, RestartPolicy, HarnessBinding, ControllerSpec]


def test_every_default_is_valid() -> None:
    assert convert(ControlConfig, {}, "run.toml") == ControlConfig()


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"deadlines": {"agent": 0}},
        {"pool": {"hosts": -1}},
        {"launch": "thread"},
        {"concurency": 3},
        {"reward": "a.b"},
        {"agent_timeout": "maybe"},
        {"network": {"tasks": "public"}},
        {"network": {"setup": ["https://example.org"]}},
        {"network": {"agent": ["example.org:0"]}},
        {"network": {"verify": ["10.0.0.0/8"]}},
        {"network": {"setup": ["example.org"]}, "launch": "kubernetes"},
    ],
)
def test_a_wrong_setting_is_refused(wrong: dict) -> None:
    with pytest.raises(ConfigurationError, match=r"run\.toml"):
        convert(ControlConfig, wrong, "run.toml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_documented(kind: type) -> None:
    assert set(field_docs(kind)) == set(kind.__struct_fields__)


def test_the_reward_of_a_source_comes_before_that_of_the_run() -> None:
    rule = reward_rule("", "a + b")
    assert rule is not None and rule.text == "a + b"
    assert (rule := reward_rule("a", "b")) is not None and rule.text == "a"
    assert reward_rule("", "") is None
    with pytest.raises(ConfigurationError, match=r"run\.toml.*reward = 'a \+'"):
        convert(HarnessBinding, {"harness": "h", "reward": "a +"}, "run.toml")


def test_gateway_addresses() -> None:
    assert gateway_address("http://127.0.0.1:8100") == ("127.0.0.1", 8100)
    assert gateway_address("http://[::1]:8100/") == ("::1", 8100)
    for wrong in ("https://127.0.0.1:1", "http://127.0.0.1", "127.0.0.1:8100", "http://127.0.0.1:many", ""):
        with pytest.raises(ConfigurationError, match="gateway_url"):
            gateway_address(wrong)


def test_runs_never_share_a_sandbox_prefix(tmp_path) -> None:
    first, second = sandbox_prefix(tmp_path / "run"), sandbox_prefix(tmp_path / "run2")
    assert first == sandbox_prefix(tmp_path / "x" / ".." / "run")
    assert not first.startswith(second) and not second.startswith(first)
