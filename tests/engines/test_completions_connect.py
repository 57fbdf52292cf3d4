"""Choosing an engine: configuration by kind, and clients by kind and URL."""

from __future__ import annotations

import msgspec
import pytest

from whippletree import configuration
from whippletree.configuration import Config
from whippletree.engines.config import EmbeddedConfig, EngineConfig, HostedConfig, ScriptedConfig, SglangConfig, VllmConfig
from whippletree.engines.connect import client_of, connect
from whippletree.errors import ConfigurationError
from whippletree.protocols import Engine


class Holder(Config):
    """A run file with nothing but an engine."""

    engine: EngineConfig = EmbeddedConfig()
    """The engine."""


KINDS = [
    ("embedded", EmbeddedConfig),
    ("vllm", VllmConfig),
    ("sglang", SglangConfig),
    ("hosted", HostedConfig),
    ("scripted", ScriptedConfig),
]


@pytest.mark.parametrize(("kind", "struct"), KINDS)
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


@pytest.mark.parametrize("kind", ["embedded", "vllm", "sglang", "completions"])
async def test_each_kind_gives_a_client_of_the_protocol(kind: str) -> None:
    engine = connect(kind, "http://127.0.0.1:9", model="m", api_key="k")
    assert isinstance(engine, Engine)
    assert engine.name == kind
    await engine.close()


@pytest.mark.parametrize(
    ("config", "kind", "url"),
    [
        (EmbeddedConfig(), "embedded", "http://127.0.0.1:9"),
        (VllmConfig(), "vllm", "http://127.0.0.1:9"),
        (VllmConfig(url="http://10.0.0.7:8000"), "vllm", "http://10.0.0.7:8000"),
        (SglangConfig(url="http://10.0.0.7:30000/"), "sglang", "http://10.0.0.7:30000"),
        (HostedConfig(base_url="https://x/v1", model="m"), "hosted", "https://x/v1"),
        (ScriptedConfig(url="http://10.0.0.7:8101"), "scripted", "http://10.0.0.7:8101"),
        (ScriptedConfig(), "scripted", ""),
    ],
)
async def test_a_configuration_has_its_client_and_replicas_have_names_of_their_own(
    config: EngineConfig, kind: str, url: str
) -> None:
    engine, second = client_of(config, "http://127.0.0.1:9"), client_of(config, "http://127.0.0.1:9", name="replica-2")
    assert isinstance(engine, Engine)
    assert (engine.name, second.name) == (kind, "replica-2")
    if url:
        assert engine.http.base_url == url
    await engine.close()
    await second.close()


def test_an_unknown_kind_or_a_bad_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="one of completions, echo, embedded, sglang, vllm"):
        connect("scripted", "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="URL"):
        connect("vllm", "127.0.0.1:9")


def test_settings_survive_messagepack() -> None:
    config = VllmConfig(model="/m")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=EngineConfig) == config
