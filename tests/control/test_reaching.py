"""What a task's phases may reach: of what it asks for, by the run's settings."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from whippletree.control.config import DefenceConfig, NetworkConfig
from whippletree.control.defending import SUSPECTED, Defence
from whippletree.control.reaching import PROXY_PORT, REFUSED, AttemptNetwork, Phase, Reach, grant
from whippletree.protocols import NetworkPolicy, NetworkRefusal, SandboxSpec
from whippletree.sandboxes import Box
from whippletree.store import open_store
from whippletree.tasks import Step, Task
from whippletree.tasks.task import Judging, Network, Place
from whippletree.types import RolloutSpec

PUBLIC = Network(mode="public", key="environment.network_mode")
LISTED = Network(mode="allowlist", hosts=("a.example", "*.b.example", "c.example:8080"), key="agent.network_mode")
NONE = Network(mode="no-network", key="agent.network_mode")
UNSAID = Network()
HOSTS = ("a.example:443", "a.example:80", "*.b.example:443", "*.b.example:80", "c.example:8080")


@pytest.mark.parametrize(
    ("tasks", "wanted", "allowed", "withheld"),
    [
        ("closed", PUBLIC, (), 1),
        ("closed", LISTED, (), 1),
        ("allowlist", PUBLIC, (), 1),
        ("allowlist", LISTED, HOSTS, 0),
        ("open", PUBLIC, ("*:443", "*:80"), 0),
        ("open", LISTED, HOSTS, 0),
        *((tasks, wanted, (), 0) for tasks in ("closed", "allowlist", "open") for wanted in (NONE, UNSAID)),
    ],
)
def test_a_task_gets_what_it_says_as_far_as_the_run_grants_it(
    tasks: str, wanted: Network, allowed: tuple[str, ...], withheld: int
) -> None:
    config = NetworkConfig(tasks=tasks)  # type: ignore[arg-type]
    found = grant(config, wanted)
    assert (found.allow, len(found.withheld)) == (allowed, withheld)
    assert all(sentence.startswith(wanted.key) and f'tasks = "{tasks}"' in sentence for sentence in found.withheld)
    own = grant(config, wanted, ["10.0.0.7:3141", "mirror.example"])  # the run's own, whatever the task says
    assert own.allow == (*allowed, "10.0.0.7:3141", "mirror.example:443")


@pytest.mark.parametrize("tasks", ["allowlist", "open"])
@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "10.0.0.1:80", "169.254.169.254", "[::1]:8000", "[::ffff:10.0.0.1]:80", "10.0.0.0/8", "https://x.example"],
)
def test_a_task_never_gets_an_address_that_is_not_public(tasks: str, host: str) -> None:
    wanted = Network(mode="allowlist", hosts=(host, "1.1.1.1"), key="agent.network_mode")
    found = grant(NetworkConfig(tasks=tasks), wanted)  # type: ignore[arg-type]
    assert found.allow == ("1.1.1.1:443", "1.1.1.1:80")
    assert len(found.withheld) == 1 and repr(host) in found.withheld[0]


@pytest.mark.parametrize("host", ["*", "*.example", "*:8443"])
def test_everything_is_not_an_allow_list(host: str) -> None:
    wanted = Network(mode="allowlist", hosts=(host,), key="agent.network_mode")
    assert grant(NetworkConfig(tasks="allowlist"), wanted).allow == ()
    assert grant(NetworkConfig(tasks="open"), wanted).allow


def task(*steps: Step, network: Network = UNSAID) -> Task:
    return Task(task_id="t", path="/t", place=Place(workdir="/app", network=network), steps=steps)


def step(name: str = "", agent: Network = UNSAID, verifier: Network = UNSAID, separate: Place | None = None) -> Step:
    judging = Judging(tests=(), network=verifier, separate=separate)
    return Step(name=name, instruction="x", judging=judging, agent_network=agent)


class Entered:
    """A sandbox that only knows which policy is set, and what it refused."""

    handle = None

    def __init__(self) -> None:
        self.refusals: list[NetworkRefusal] = []

    @property
    def refused(self) -> int:
        return len(self.refusals)

    async def set_network(self, policy: NetworkPolicy) -> None:
        self.policy = policy


async def policies(reach: Reach, *steps: Step) -> list[tuple[str, bool, tuple[str, ...]]]:
    box, seen = Entered(), []
    for one in steps:
        for phase in ("setup", "agent", "seal", "collect", "verify"):
            await reach.enter(box, phase, one)  # type: ignore[arg-type]
            seen.append((phase, box.policy.gateway, box.policy.allow))
    return seen


async def test_with_the_defaults_the_agent_reaches_the_gateway_and_nothing_else() -> None:
    one = step(agent=PUBLIC, verifier=PUBLIC)
    reach = Reach(NetworkConfig(), task(one, network=PUBLIC))
    assert await policies(reach, one) == [
        ("setup", False, ()),
        ("agent", True, ()),
        ("seal", True, ()),
        ("collect", False, ()),
        ("verify", False, ()),
    ]
    spec = reach.around(SandboxSpec(sandbox_id="x"))
    assert (spec.proxy_port, spec.network) == (0, NetworkPolicy(gateway=False))
    (sentence,) = reach.withheld  # the same key in each phase is told once
    assert "environment.network_mode = public: not granted" in sentence


async def test_each_phase_has_its_own_list_and_set_up_none_after_an_agent() -> None:
    one, two = step("one", agent=LISTED), step("two", verifier=LISTED)
    config = NetworkConfig(tasks="allowlist", setup=("s.example",), agent=("g.example",), verify=("v.example",))
    reach = Reach(config, task(one, two))
    assert reach.around(SandboxSpec(sandbox_id="x")).network == NetworkPolicy(gateway=False, allow=("s.example:443",))
    assert [entry for entry in await policies(reach, one, two) if entry[2]] == [
        ("setup", False, ("s.example:443",)),
        ("agent", True, (*HOSTS, "g.example:443")),
        ("verify", False, ("v.example:443",)),
        ("setup", False, ("g.example:443",)),  # an agent has worked there: what its phase has, and no more
        ("agent", True, ("g.example:443",)),
        ("verify", False, (*HOSTS, "v.example:443")),
    ]
    assert reach.around(SandboxSpec(sandbox_id="y")).network.allow == ("s.example:443",)  # another sandbox, a fresh start


@pytest.mark.parametrize(("before", "blamed"), [("agent", 2), ("verify", 0)])
async def test_what_is_left_running_at_the_seal_is_the_agents_or_the_tests(tmp_path: Path, before: Phase, blamed: int) -> None:
    one = step("one")
    box = cast(Box, Entered())
    with open_store(tmp_path / "store") as store:
        spec = RolloutSpec(rollout_id="r", group_id="g", source="s", task_id="t", task_path="/t", harness="h")
        store.create_rollouts([spec]).result()
        (attempt,) = store.claim("w", 1).result()
        network = AttemptNetwork(NetworkConfig(), store, attempt, Defence(DefenceConfig(), store, attempt, tmp_path))
        network.around(SandboxSpec(sandbox_id="x"), task(one))
        for number, phase in enumerate((before, "seal", "collect", "verify")):
            await network.enter(box, cast(Phase, phase), one)
            box.refusals.append(NetworkRefusal(time=1.0, host=f"h{number}.example", port=443, reason="x"))  # type: ignore[attr-defined]
        network.end(box)
        store.set_meta("flush", "").result()  # behind every write that was made before
        kinds = [event.kind for event in store.events("r")]
    assert (kinds.count(SUSPECTED), kinds.count(REFUSED)) == (blamed, 4)


def test_a_proxy_is_where_a_phase_needs_one() -> None:
    def ports(config: NetworkConfig, one: Step) -> tuple[int, int]:
        reach = Reach(config, task(one))
        spec = SandboxSpec(sandbox_id="x")
        return reach.around(spec).proxy_port, reach.apart(spec, one).proxy_port

    apart = step(separate=Place(workdir="/app"))
    assert ports(NetworkConfig(), step()) == (0, 0)
    for config in (NetworkConfig(setup=("a",)), NetworkConfig(agent=("a",))):
        assert ports(config, step()) == (PROXY_PORT, 0)
    assert ports(NetworkConfig(verify=("a",)), step()) == (PROXY_PORT, PROXY_PORT)
    assert ports(NetworkConfig(verify=("a",)), apart) == (0, PROXY_PORT)
    assert ports(NetworkConfig(tasks="open"), step(agent=PUBLIC)) == (PROXY_PORT, 0)
