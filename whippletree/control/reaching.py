"""What an attempt may reach, phase by phase: what its task asks for, as far as the run grants it, and the run's own lists.

    boot, healthcheck, setup ─► agent ─────────────► seal ──────────► collect ─► verify
    environment's, and set-up    agent's, and agent   the gateway,     nothing    verifier's, and verify list;
    list; no gateway             list; the gateway    while it closes             no gateway

Invariants (tests/control/test_reaching.py, test_reaching_attempts.py):
- with the defaults nothing but the gateway is reached, and that by the agent alone;
- a task never gets an address that is not public; what it asks for and does not get is on the record;
- no set-up list is open once an agent has worked in the sandbox: what it left could use it. Later steps are set up with what
  their agents may reach;
- what is refused while the agent works is its own doing, and nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from whippletree.control.config import NetworkConfig
from whippletree.control.defending import Defence, note
from whippletree.errors import SandboxError
from whippletree.protocols import NetworkPolicy, NetworkRefusal, Sandbox, SandboxSpec, Store
from whippletree.sandboxes import egress_rules
from whippletree.tasks import Step, Task
from whippletree.tasks.task import Network
from whippletree.types import Attempt, Event, Struct

Phase = Literal["setup", "agent", "seal", "collect", "verify"]

PROXY_PORT = 3128  # on 127.0.0.1 inside, where any phase may reach anything
PUBLIC = ("*:443", "*:80")
TASK_PORTS = (443, 80)  # of a host that a task lists without a port
REFUSED, WITHHELD = "network_refused", "network_withheld"  # kinds of events
MOST = 32  # events of one attempt about refusals
_AGENT = ("agent", "seal")  # phases in which processes of the agent may still run


class Grant(Struct):
    """What one phase of a task may reach, and in sentences what it asks for in vain.

    Example: Grant(allow=("deb.debian.org:443",), withheld=('agent.network_mode = public: not granted with ...',))
    """

    allow: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()


def grant(config: NetworkConfig, wanted: Network, own: Sequence[str] = ()) -> Grant:
    """What a phase gets of what it wants, beside the run's `own` list."""
    listed = [rule for entry in own for rule in egress_rules.entry(entry)]
    given: list[str] = []
    withheld: list[str] = []
    if wanted.key and wanted.mode == "public":
        if config.tasks == "open":
            given += PUBLIC
        else:
            withheld.append(_denied(config, wanted, ""))
    elif wanted.key and wanted.mode == "allowlist":
        if config.tasks == "closed":
            withheld.append(_denied(config, wanted, f" of {', '.join(wanted.hosts)}"))
        else:
            for host in wanted.hosts:
                rules, why = _rules(host, everything=config.tasks == "open")
                given += rules
                withheld += [f"{wanted.key}: {host!r} is not granted: {why}"] if why else []
    return Grant(allow=tuple(dict.fromkeys((*given, *listed))), withheld=tuple(withheld))


def _denied(config: NetworkConfig, wanted: Network, hosts: str) -> str:
    return f'{wanted.key} = {wanted.mode}{hosts}: not granted with control.network.tasks = "{config.tasks}"'


def _rules(text: str, *, everything: bool) -> tuple[list[str], str]:
    """The rules of a host that a task lists, or why there are none."""
    try:
        rules = egress_rules.entry(text, TASK_PORTS)
    except ValueError:
        return [], "it is no host"
    host, _ = egress_rules.parse(rules[0])
    if egress_rules.is_address(host) and not egress_rules.is_public(host):
        return [], "the address is not public"
    if host.startswith("*") and host.count(".") < 2 and not everything:
        return [], 'it needs control.network.tasks = "open"'
    return rules, ""


class Reach:
    """What the phases of one task may reach."""

    def __init__(self, config: NetworkConfig, task: Task) -> None:
        self._config = config
        self._task = task
        self._worked = False  # whether an agent has been in the sandbox

    def policy(self, phase: Phase, step: Step) -> NetworkPolicy:
        """What may be reached in this phase."""
        if phase in ("seal", "collect"):
            return NetworkPolicy(gateway=phase == "seal")
        return NetworkPolicy(gateway=phase == "agent", allow=self._grant(phase, step).allow)

    def _grant(self, phase: Phase, step: Step) -> Grant:
        config = self._config
        if phase == "verify":
            return grant(config, step.judging.network, config.verify)
        if phase == "setup" and not self._worked:
            return grant(config, self._task.place.network, config.setup)
        return grant(config, step.agent_network, config.agent)

    @property
    def withheld(self) -> tuple[str, ...]:
        """What the task asks for and does not get, in sentences."""
        config, steps = self._config, self._task.steps
        wanted = [self._task.place.network, *(step.agent_network for step in steps), *(step.judging.network for step in steps)]
        return tuple(dict.fromkeys(sentence for network in wanted for sentence in grant(config, network).withheld))

    @property
    def mirrors(self) -> frozenset[str]:
        """Hosts that only the set-up may reach."""
        rules = grant(self._config, self._task.place.network, self._config.setup).allow
        return frozenset(egress_rules.parse(rule)[0] for rule in rules)

    def around(self, spec: SandboxSpec) -> SandboxSpec:
        """The agent's sandbox, with the network of its set-up, and a proxy if any phase needs one."""
        self._worked = False
        policy = self.policy("setup", self._task.steps[0])
        phases: tuple[Phase, ...] = ("setup", "agent", "verify")
        shared = [
            (phase, step) for step in self._task.steps for phase in phases if not (phase == "verify" and step.judging.separate)
        ]
        proxy = any(self.policy(phase, step).allow for phase, step in shared)
        return msgspec.structs.replace(spec, network=policy, proxy_port=PROXY_PORT if proxy else 0)

    def apart(self, spec: SandboxSpec, step: Step) -> SandboxSpec:
        """A separate verifier's sandbox, in which nothing runs but the tests."""
        policy = self.policy("verify", step)
        return msgspec.structs.replace(spec, network=policy, proxy_port=PROXY_PORT if policy.allow else 0)

    async def enter(self, sandbox: Sandbox, phase: Phase, step: Step) -> None:
        """From here on the sandbox reaches what this phase may; what is open and may not is cut. Raises SandboxError."""
        policy = self.policy(phase, step)
        self._worked = self._worked or phase == "agent"
        if sandbox.handle is None or sandbox.handle.backend != "process":  # whose network is the host's, in every phase
            await sandbox.set_network(policy)


class AttemptNetwork:
    """One attempt's network: each phase's is set, and what was refused in it is written down."""

    def __init__(self, config: NetworkConfig, store: Store, attempt: Attempt, defence: Defence) -> None:
        self._config = config
        self._store = store
        self._attempt = attempt
        self._defence = defence
        self._reach: Reach | None = None
        self._phase: Phase = "setup"
        self._step: Step | None = None
        self._apart: list[tuple[Sandbox, Step]] = []
        self._counted: dict[Sandbox, int] = {}
        self._told = 0

    def around(self, spec: SandboxSpec, task: Task) -> SandboxSpec:
        """The agent's sandbox with its network. What the task asks for in vain is written down."""
        self._reach, self._step = Reach(self._config, task), task.steps[0]
        if withheld := self._reach.withheld:
            note(self._store, [self._event(WITHHELD, {"what": list(withheld)})])
        return self._reach.around(spec)

    def _begun(self) -> tuple[Reach, Step]:
        if self._reach is None or self._step is None:
            raise SandboxError("the attempt has no sandbox yet")
        return self._reach, self._step

    def apart(self, make: Callable[[SandboxSpec], Sandbox], step: Step) -> Callable[[SandboxSpec], Sandbox]:
        """How the sandbox of a separate verifier of this step is made."""
        reach, _ = self._begun()

        def made(spec: SandboxSpec) -> Sandbox:
            box = make(reach.apart(spec, step))
            self._apart.append((box, step))
            return box

        return made

    async def enter(self, box: Sandbox, phase: Phase, step: Step | None = None) -> None:
        """The next phase of the same or another step begins in the agent's sandbox. Raises SandboxError."""
        reach, before = self._begun()
        self._look(box, self._phase, before)
        if phase == "seal" and self._phase != "agent":
            phase = "collect"  # the step was judged already: what still runs is of its tests
        self._phase, self._step = phase, step or before
        await reach.enter(box, phase, self._step)

    def end(self, box: Sandbox) -> None:
        """The attempt is over, in whatever phase. Raises SandboxError where it has not begun."""
        _, last = self._begun()
        self._look(box, self._phase, last)
        for other, step in self._apart:
            self._look(other, "verify", step)

    def _look(self, box: Sandbox, phase: Phase, step: Step) -> None:
        """Write down what the sandbox was refused since the last look."""
        count = box.refused - self._counted.get(box, 0)
        self._counted[box] = box.refused
        refusals = list(box.refusals)[-count:] if count else []
        if phase in _AGENT:
            self._defence.refused(refusals, self._begun()[0].mirrors)
        if events := list(self._events(refusals, phase, step)):
            note(self._store, events)

    def _events(self, refusals: Sequence[NetworkRefusal], phase: Phase, step: Step) -> Iterator[Event]:
        places: dict[tuple[str, int, str], list[NetworkRefusal]] = {}
        for refusal in refusals:
            places.setdefault((refusal.host, refusal.port, refusal.reason), []).append(refusal)
        for same in places.values():
            if self._told < MOST:
                self._told += 1
                first = msgspec.to_builtins(same[0])
                yield self._event(REFUSED, {**first, "phase": phase, "step": step.name, "count": len(same)})

    def _event(self, kind: str, data: dict[str, Any]) -> Event:
        attempt = self._attempt
        name = f"{attempt.rollout_id}-{attempt.attempt}-{kind}-{self._told}"
        return Event(
            event_id=name, rollout_id=attempt.rollout_id, attempt=attempt.attempt, time=time.time(), kind=kind, data=data
        )
