"""The OpenAPI document says what the server does: every route is in it, and what schemathesis makes of it is answered by it."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import schemathesis
from gateway_world import SECRET
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from whippletree.engines.scripted import ScriptedEngine
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.keys import control_key
from whippletree.gateway.rollout_api import wire
from whippletree.gateway.rollout_api.operations import OPERATIONS, document
from whippletree.gateway.rollout_api.service import LONGEST_WAIT
from whippletree.gateway.server import Parts, serving
from whippletree.store import open_store


def without_security(found: dict[str, Any]) -> dict[str, Any]:
    """The document without keys: the test gives one, so no request may be called wrong for the lack of it."""
    for path in found["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
    found.pop("security", None)
    return found


SCHEMA = schemathesis.openapi.from_dict(without_security(document("test")))
ASKED = SCHEMA.exclude(method="POST", path="/api/models")  # what is registered there is called: test_rollout_api_models.py
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, renderer: Any) -> Iterator[str]:
    """The address of a gateway on a thread of its own, with a few rollouts of every state."""
    directory: Path = tmp_path_factory.mktemp("api")
    ready: threading.Event = threading.Event()
    address: list[str] = []
    stops: list[Any] = []

    async def main() -> None:
        with open_store(directory / "store") as store:
            parts = Parts(store=store, engines=[ScriptedEngine()], renderer=renderer, secret=SECRET)
            async with serving(GatewayConfig(port=0), parts) as port:
                stop = asyncio.Event()
                stops.extend((asyncio.get_running_loop(), stop))
                address.append(f"http://127.0.0.1:{port}")
                ready.set()
                await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert ready.wait(60)
    yield address[0]
    stops[0].call_soon_threadsafe(stops[1].set)
    thread.join(30)


@ASKED.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
def test_every_answer_is_one_that_the_document_promises(case: schemathesis.Case, served: str) -> None:
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and 0 <= wait <= LONGEST_WAIT:
        case.query["wait"] = 0  # or the test would wait too
    case.headers = {name: text for name, text in (case.headers or {}).items() if name.lower() != "expect"}  # aiohttp answers it
    headers = {"Authorization": f"Bearer {control_key(SECRET)}"}
    case.call_and_validate(base_url=served, headers=headers, checks=CHECKS)


def test_the_document_has_every_route_of_the_api_and_no_other(served: str) -> None:
    """The router is asked: a path of the document with its method is served, with any other method it is not."""
    described = {(operation.path, operation.method) for operation in OPERATIONS}
    for path in {operation.path for operation in OPERATIONS}:
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            connection = http.client.HTTPConnection(urlsplit(served).netloc)
            filled = path.format(rollout_id="nobody", attempt=1)
            connection.request(method, filled, b"{", headers={"Authorization": f"Bearer {control_key(SECRET)}"})
            answer = connection.getresponse()
            code = msgspec.json.decode(answer.read()).get("error", {}).get("code", "")
            connection.close()
            by_id = ("/api/rollouts/{rollout_id}", method) in described and path == "/api/rollouts/cancel"  # an id too
            known = (path, method) in described or by_id
            assert (code != "no_route") == known, (method, path, answer.status, code)


def test_every_struct_of_the_api_has_a_schema() -> None:
    schemas = document("x")["components"]["schemas"]
    made = {name for name, kind in vars(wire).items() if isinstance(kind, type) and kind.__module__ == wire.__name__}
    assert made <= set(schemas)


def test_every_operation_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)
    assert all(operation.about.endswith(".") for operation in OPERATIONS)
