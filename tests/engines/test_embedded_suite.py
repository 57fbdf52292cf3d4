"""The embedded engine, as a real process with a tiny Qwen3 and a tiny Llama, obeys the shared suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from engine_parts import VOCABULARY, Models, embedded_process
from suite import EngineSuite, Reference, Served

from whippletree.engines.embedded.client import EmbeddedEngine
from whippletree.protocols import Engine
from whippletree.types import WeightUpdate

CONTEXT = 8192


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def pair(request: pytest.FixtureRequest, models: Callable[[str], Models]) -> Models:
    return models(request.param)


@pytest.fixture(scope="module")
def url(pair: Models, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # A small prefill budget, so that the suite's prompts are computed in pieces.
    arguments = ("--slots", "24", "--prefill-tokens", "48", "--stream-interval", "0.002")
    with embedded_process(pair.old, tmp_path_factory.mktemp("engine"), *arguments, context=CONTEXT) as (address, _):
        yield address


@pytest.fixture
def served(pair: Models, reference: Reference) -> Served:
    return Served(VOCABULARY, CONTEXT, pair.old, pair.new, tolerance=1e-5, reference=reference)


@pytest.fixture
async def engine(url: str, served: Served) -> AsyncIterator[Engine]:
    engine = EmbeddedEngine(url)
    version = (await engine.status()).policy_version
    await engine.resume()
    await engine.update_weights(WeightUpdate(directory=served.old, policy_version=version))
    yield engine
    await engine.close()


class TestEmbeddedSuite(EngineSuite):
    """Every behaviour of the suite."""
