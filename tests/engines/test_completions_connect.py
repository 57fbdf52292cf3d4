"""Choosing an engine: configuration by kind, and clients by kind and URL."""

from __future__ import annotations

import msgspec
import pytest

from whippletree import configuration
from whippletree.configuration import Config
from whippletree.engines.config import EmbeddedConfig, EngineConfig, ScriptedConfig, VllmConfig
from whippletree.engines.connect import connect
from whippletree.errors import ConfigurationError
from whippletree.protocols import Engine


class Holder(Config):
    """A run file with nothing but an engine."""

    engine: EngineConfig = EmbeddedConfig()
    """The engine."""


@pytest.mark.parametrize(("kind", "struct"), [("embedded", EmbeddedConfig), ("vllm", VllmConfig), ("scripted", ScriptedConfig)])
def test_the_kind_says_which_settings_apply(kind: str, struct: type[Config]) -> None:
    loaded = configuration.convert(Holder, {"engine": {"kind": kind, "context": 77}}, "run.toml")
    assert type(loaded.engine) is struct
    assert loaded.engine.context == 77
    assert set(configuration.field_docs(struct)) == set(struct.__struct_fields__)


def test_a_dumped_configuration_loads_to_an_equal_one() -> None:
    import tomllib

    holder = Holder(engine=VllmConfig(python="/v/bin/python", model="/m", arguments=["--seed=3"], environment={"A": "1"}))
    assert configuration.convert(Holder, tomllib.loads(configuration.dump(holder)), "dump") == holder


@pytest.mark.parametrize("table", [{"kind": "vlm"}, {"kind": "vllm", "pyton": "x"}, {"kind": "vllm", "dtype": "float8"}])
def test_an_unknown_kind_key_or_choice_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match=r"run\.toml"):
        configuration.convert(Holder, {"engine": table}, "run.toml")


@pytest.mark.parametrize("kind", ["embedded", "vllm", "completions"])
async def test_each_kind_gives_a_client_of_the_protocol(kind: str) -> None:
    engine = connect(kind, "http://127.0.0.1:9", model="m", api_key="k")
    assert isinstance(engine, Engine)
    assert engine.name == kind
    await engine.close()


def test_an_unknown_kind_or_a_bad_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="one of completions, embedded, vllm"):
        connect("scripted", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="URL"):
        connect("vllm", "127.0.0.1:9")


def test_settings_survive_messagepack() -> None:
    config = VllmConfig(model="/m")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config
