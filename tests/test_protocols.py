"""whippletree/protocols: every shipped implementation satisfies its protocol, in its names and in its signatures."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_run import write_tokenizer

from whippletree import protocols
from whippletree.engines.config import EngineConfig
from whippletree.engines.connect import connect
from whippletree.gateway import dialects
from whippletree.gateway.dialects import ReplyHead
from whippletree.gateway.dialects.registry import DIALECTS
from whippletree.gateway.routing import StickyRouter
from whippletree.harnesses import NAMES, load_harness
from whippletree.loop.engine import connect_engine
from whippletree.protocols import SandboxSpec
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.sandboxes import SandboxConfig, create
from whippletree.store import SegmentPayloadStore, open_store


def renderer(directory: Path) -> Any:
    """A renderer of the shipped template, on a tokenizer of bytes."""
    return load_renderer(write_tokenizer(directory), RenderingConfig(template="tiny"))


def sandbox(_: Path) -> Any:
    return create(SandboxConfig(kind="process"), SandboxSpec(sandbox_id="s"), gateway=("127.0.0.1", 1))


def harness_kind(name: str) -> type:
    return protocols.PoolHarness if "pool" in load_harness(name).facts.launches else protocols.Harness


def stream_of(dialect: dialects.Dialect) -> Any:
    return dialect.stream(ReplyHead(call_id="c", model="policy", created=1))


Make = Callable[[Path], Any]


def engine(kind: str, **settings: str) -> Make:
    """The client that the loop makes for this kind of [engine]."""
    config = msgspec.convert({"kind": kind, **settings}, EngineConfig)
    return lambda _: connect_engine(config, "http://127.0.0.1:1")


SHIPPED: list[tuple[type, str, Make]] = [
    *((protocols.Engine, kind, engine(kind)) for kind in ("embedded", "vllm", "sglang", "scripted")),
    (protocols.Engine, "hosted", engine("hosted", base_url="http://127.0.0.1:1/v1", model="m")),
    *((protocols.ChatEngine, kind, engine(kind)) for kind in ("vllm", "sglang")),
    (protocols.ChatEngine, "hosted", engine("hosted", base_url="http://127.0.0.1:1/v1", model="m")),
    (protocols.Router, "sticky", lambda _: StickyRouter()),
    (protocols.Engine, "completions", lambda _: connect("completions", "http://127.0.0.1:1")),
    (protocols.Renderer, "chat", renderer),
    (protocols.StreamParser, "turn", lambda directory: renderer(directory).parser(())),
    (protocols.Store, "sqlite", open_store),
    (protocols.PayloadStore, "segments", SegmentPayloadStore),
    (protocols.Sandbox, "box", sandbox),
    *((harness_kind(name), name, lambda _, name=name: load_harness(name)) for name in NAMES),
    *((protocols.ConfiguredHarness, name, lambda _, name=name: load_harness(name)) for name in ("callable", "command")),
    *((dialects.Dialect, name, lambda _, name=name: DIALECTS[name]) for name in DIALECTS),
    *((dialects.StreamWriter, name, lambda _, name=name: stream_of(DIALECTS[name])) for name in DIALECTS),
]


def members(protocol: type) -> set[str]:
    """Names that the protocol asks for, its parents' included."""
    found: set[str] = set()
    for kind in protocol.__mro__:
        if getattr(kind, "_is_protocol", False):
            found |= {name for name in (*vars(kind), *getattr(kind, "__annotations__", {})) if not name.startswith("_")}
    return found


def takes(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"])


@pytest.fixture(params=SHIPPED, ids=[f"{protocol.__name__}-{name}" for protocol, name, _ in SHIPPED])
def shipped(request: pytest.FixtureRequest, tmp_path: Path):
    protocol, _, make = request.param
    made = make(tmp_path)
    yield protocol, made
    if protocol in (protocols.Store, protocols.PayloadStore):
        made.close()


async def test_every_shipped_implementation_satisfies_its_protocol(shipped: tuple[type, Any]):
    protocol, made = shipped
    assert members(protocol)
    assert [name for name in sorted(members(protocol)) if not hasattr(made, name)] == []
    if getattr(protocol, "_is_runtime_protocol", False):
        assert isinstance(made, protocol)


async def test_what_a_protocol_can_be_called_with_every_implementation_takes(shipped: tuple[type, Any]):
    protocol, made = shipped
    for name in sorted(members(protocol)):
        asked = inspect.getattr_static(protocol, name, None)
        if not inspect.isfunction(asked):
            continue
        wanted, found = takes(asked), takes(getattr(made, name))
        for parameter in wanted.parameters.values():
            taken = found.parameters.get(parameter.name)
            assert taken is not None, f"{type(made).__name__}.{name} does not take {parameter.name}"
            keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
            assert keyword or list(found.parameters)[list(wanted.parameters).index(parameter.name)] == parameter.name
            assert taken.default == parameter.default or parameter.default is parameter.empty, f"{name}: {parameter.name}"
        extra = set(found.parameters) - set(wanted.parameters)
        required = [word for word in extra if found.parameters[word].default is inspect.Parameter.empty]
        assert [word for word in required if found.parameters[word].kind is not inspect.Parameter.VAR_KEYWORD] == []
        asynchronous = inspect.iscoroutinefunction(asked)
        assert inspect.iscoroutinefunction(getattr(made, name)) == asynchronous, f"{type(made).__name__}.{name}"


def test_the_page_of_extension_points_names_every_runtime_protocol():
    assert protocols.__doc__ is not None
    named = {name for name, value in vars(protocols).items() if getattr(value, "_is_runtime_protocol", False)}
    assert named >= {"Engine", "Renderer", "Store", "Sandbox", "Harness"}
    assert [name for name in named if name.removeprefix("Pool") not in protocols.__doc__] == []
