"""Pods of a real API server for tests, with a kubelet that runs them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
from kube_real import TOKEN, RealApi
from kubelet_parts import PodKubelet

from whippletree.sandboxes import SandboxConfig
from whippletree.sandboxes.config import KubernetesSandboxConfig


@dataclass
class PodSite:
    """One namespace with a kubelet."""

    api: RealApi
    namespace: str
    kubelet: PodKubelet
    session: aiohttp.ClientSession

    def config(self, root: Path | None = None, **changes: object) -> SandboxConfig:
        base = KubernetesSandboxConfig(
            image="this-machine",
            kubeconfig=str(self.api.directory / "kubeconfig"),
            namespace=self.namespace,
            pending_seconds=30.0,
            ping_seconds=5.0,
            lost_seconds=20.0,
            request_seconds=10.0,
        )
        kubernetes = msgspec.structs.replace(base, **changes)
        return SandboxConfig(kind="kubernetes", root=str(root or ""), kubernetes=kubernetes)

    async def objects(self, path: str) -> list[dict]:
        """All of a kind, past the code under test: "api/v1/pods", "networking.k8s.io/v1/networkpolicies"."""
        group, _, kind = path.rpartition("/")
        group = group if group.startswith("api/") else f"apis/{group}"
        async with self.session.get(f"{self.api.url}/{group}/namespaces/{self.namespace}/{kind}") as reply:
            return (await reply.json())["items"] or []

    async def pods(self) -> list[dict]:
        return await self.objects("api/v1/pods")

    async def policies(self) -> list[dict]:
        return await self.objects("networking.k8s.io/v1/networkpolicies")

    async def request(self, method: str, path: str, body: dict, content: str = "application/json") -> dict:
        headers = {"Content-Type": content}
        async with self.session.request(method, f"{self.api.url}{path}", json=body, headers=headers) as reply:
            return await reply.json()


@asynccontextmanager
async def pod_site(api: RealApi, directory: Path) -> AsyncIterator[PodSite]:
    namespace = f"p-{secrets.token_hex(4)}"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    kubelet = PodKubelet(api.url, namespace, TOKEN)
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=False)) as session:
        site = PodSite(api, namespace, kubelet, session)
        await site.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await kubelet.start(directory)
        try:
            yield site
        finally:
            await kubelet.stop()
