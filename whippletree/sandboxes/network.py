"""The ways out of one sandbox: the relay to the gateway, the proxy to the allow-list, and what was refused.

Invariants (tests/sandboxes/test_sandbox_network.py, sandbox_suite_network.py): a policy holds for what is open as for what
comes; commands are led to the proxy only while it leads somewhere; refusals are kept to a number, the latest ones, and counted
beyond it.
"""

from __future__ import annotations

import collections
import socket
import time

from whippletree.errors import SandboxError
from whippletree.protocols import NetworkPolicy, NetworkRefusal, SandboxSpec
from whippletree.sandboxes import egress_rules
from whippletree.sandboxes.egress import Egress
from whippletree.sandboxes.relay import Relay

_KEPT = 1000


def check(spec: SandboxSpec) -> None:
    """Raises SandboxError for a policy that is not well-formed or that the spec has no port for."""
    for rule in spec.network.allow:
        egress_rules.parse(rule)
    if spec.network.allow and not spec.proxy_port:
        raise SandboxError("network.allow needs a proxy", "set proxy_port of the sandbox's spec")
    if spec.proxy_port and spec.proxy_port == spec.gateway_port:
        raise SandboxError(f"gateway_port and proxy_port are both {spec.proxy_port}", "give the proxy another port")


class Network:
    """What a running sandbox can reach. Made before it starts; `open` once its listeners are there."""

    def __init__(self, spec: SandboxSpec, gateway: tuple[str, int]) -> None:
        self.policy = spec.network
        self.refusals: collections.deque[NetworkRefusal] = collections.deque(maxlen=_KEPT)
        self.refused = 0
        self._spec = spec
        self._gateway = gateway
        self._relay: Relay | None = None
        self._egress: Egress | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """Ports inside that lead out, in the order of their listeners."""
        return tuple(port for port in (self._spec.gateway_port, self._spec.proxy_port) if port)

    async def open(self, listeners: list[int]) -> None:
        """Serve these listeners, one for each port."""
        for port, descriptor in zip(self.ports, listeners, strict=True):
            listener = socket.socket(fileno=descriptor)
            if port == self._spec.gateway_port:
                self._relay = Relay(listener, self._gateway, on_refused=self._gateway_refused)
                self._relay.allow(self.policy.gateway)
                await self._relay.start()
            else:
                self._egress = Egress(listener, self._report)
                await self._egress.start()
        self._apply()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead a command to the proxy; {} while it leads nowhere, and where there is none."""
        if self._egress is None or not self.policy.allow:
            return {}
        proxy, none = f"http://127.0.0.1:{self._spec.proxy_port}", "127.0.0.1,localhost"
        names = {"http_proxy": proxy, "https_proxy": proxy, "no_proxy": none}
        return names | {name.upper(): value for name, value in names.items()}

    def set(self, policy: NetworkPolicy) -> None:
        """Change what may be reached; what is open and no longer allowed is cut. Raises SandboxError."""
        if policy.allow and self._egress is None:
            raise SandboxError("this sandbox has no proxy", "set proxy_port of its spec before it starts")
        rules = [egress_rules.parse(rule) for rule in policy.allow]
        self.policy = policy
        self._apply(rules)

    def _apply(self, rules: list[egress_rules.Target] | None = None) -> None:
        if self._relay is not None:
            self._relay.allow(self.policy.gateway)
        if self._egress is not None:
            self._egress.allow([egress_rules.parse(rule) for rule in self.policy.allow] if rules is None else rules)

    def _gateway_refused(self) -> None:
        self._report(
            NetworkRefusal(time=time.time(), host="127.0.0.1", port=self._spec.gateway_port, reason="no gateway in this phase")
        )

    def _report(self, refusal: NetworkRefusal) -> None:
        self.refused += 1
        self.refusals.append(refusal)

    async def close(self) -> None:
        """Cut everything."""
        for way in (self._relay, self._egress):
            if way is not None:
                await way.close()
