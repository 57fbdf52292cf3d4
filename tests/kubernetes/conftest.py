"""A real API server with a kubelet that runs pods; found by the setting WHIPPLETREE_KUBE, else the tests are skipped."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from kube_real import RealApi, running_api
from kubelet_parts import missing
from pod_world import PodSite, pod_site
from sandbox_suite import Make, spec_of

from whippletree import sandboxes
from whippletree.protocols import Sandbox


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    if reason := missing():
        pytest.skip(reason)
    with running_api(tmp_path_factory) as api:
        yield api


@pytest.fixture
async def site(real_api: RealApi, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PodSite]:
    async with pod_site(real_api, tmp_path_factory.mktemp("kubelet")) as made:
        yield made


@pytest.fixture
def sandbox_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a sandbox of this machine would be: nothing of a pod is."""
    return tmp_path_factory.mktemp("nothing-here")


@pytest.fixture
async def make(site: PodSite, sandbox_root: Path) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            kind: str, *, gateway: tuple[str, int] = ("127.0.0.1", 9), config: dict[str, Any] | None = None, **fields: Any
        ) -> Sandbox:
            box = sandboxes.create(site.config(sandbox_root, **(config or {})), spec_of(**fields), gateway=gateway)
            stack.push_async_callback(box.stop)
            await box.start()
            return box

        yield start
