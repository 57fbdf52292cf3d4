"""The two clusters that the tests of the Kubernetes reconciler run against, and a world of gateway, store and tasks on top."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kube_real import RealApi, running_api
from kube_world import KubeWorld, Site, fake_site, real_site


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealApi]:
    """A real API server, started once per session."""
    with running_api(tmp_path_factory) as api:
        yield api


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kube)])
async def site(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of a cluster, with a kubelet."""
    if request.param == "fake":
        async with fake_site(tmp_path) as made:
            yield made
    else:
        async with real_site(request.getfixturevalue("real_api"), tmp_path) as made:
            yield made


@pytest.fixture
async def fake(tmp_path: Path) -> AsyncIterator[Site]:
    """A cluster in memory, for what only it can do: fail on demand."""
    async with fake_site(tmp_path) as made:
        yield made


@pytest.fixture
async def kube(site: Site, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """A run directory with a gateway that serves, beside a cluster."""
    made = KubeWorld(tmp_path / "run", site)
    async with made.serving():
        yield made
    made.close()


@pytest.fixture
async def fake_kube(fake: Site, tmp_path: Path) -> AsyncIterator[KubeWorld]:
    """The same beside the cluster in memory."""
    made = KubeWorld(tmp_path / "run", fake)
    async with made.serving():
        yield made
    made.close()
