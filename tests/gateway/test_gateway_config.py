"""Settings of the gateway."""

import pytest

from whippletree.configuration import convert, dump, field_docs
from whippletree.errors import ConfigurationError
from whippletree.gateway.config import GatewayConfig


def test_defaults_are_valid_and_survive_a_dump():
    import tomllib

    config = convert(GatewayConfig, {}, "here")
    assert convert(GatewayConfig, tomllib.loads(dump(config)), "dump") == config


def test_every_field_is_documented():
    assert set(field_docs(GatewayConfig)) == set(GatewayConfig.__struct_fields__)


@pytest.mark.parametrize("field", ["keepalive", "engine_wait_limit", "engine_silence_limit", "drain_limit", "seal_limit"])
def test_a_limit_that_is_not_positive_is_refused(field):
    with pytest.raises(ConfigurationError, match=field):
        convert(GatewayConfig, {field: 0.0}, "run.toml: gateway")


def test_no_lingering_is_a_choice_and_less_is_none():
    assert convert(GatewayConfig, {"linger_limit": 0.0}, "run.toml: gateway").linger_limit == 0.0
    with pytest.raises(ConfigurationError, match="linger_limit"):
        convert(GatewayConfig, {"linger_limit": -1.0}, "run.toml: gateway")
