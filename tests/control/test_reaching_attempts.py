"""Whole attempts in real sandboxes with a real server outside: who reaches it in which phase, and what is written of it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from attempt_parts import failed, run_one
from control_world import World, write_task

from whippletree.control.config import NetworkConfig
from whippletree.control.defending import SUSPECTED
from whippletree.control.reaching import REFUSED, WITHHELD, Reach
from whippletree.sandboxes import create, probe
from whippletree.tasks import load_task
from whippletree.tasks.trial import oracle, run_trial
from whippletree.types import CauseClass, Rollout

GET = """
import sys, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=20).read().decode())
    except OSError as error:
        print("none")
"""
PROXY = "http_proxy=http://127.0.0.1:3128 no_proxy="  # for a command that is not led there
ASK = '/usr/bin/python3 -c "$ASK"'
STEP = '[[steps]]\nname = "one"\n'


class Index:
    """A server on another address of this machine, which stands for a mirror of packages; it remembers what was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.address = ""

    def get(self, path: str, to: str, *, proxy: bool = False) -> str:
        """A command that writes what is there into a file, or "none"."""
        return f"{PROXY if proxy else ''} /usr/bin/python3 /app/get.py http://{self.address}/{path} > {to}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Index]:
        server = await asyncio.start_server(self._serve, "127.0.0.2", 0)
        self.address = f"127.0.0.2:{server.sockets[0].getsockname()[1]}"
        yield self
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head.split(b" ")[1].decode())
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 7\r\n\r\npackage")
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture
async def index() -> AsyncIterator[Index]:
    async with Index().serving() as made:
        yield made


@pytest.fixture(params=["bubblewrap", "runc"])
async def boxed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    found = probe()
    if reason := found.bubblewrap if request.param == "bubblewrap" else found.runc:
        pytest.skip(f"{request.param} does not work here: {reason}")
    made = World(tmp_path / "run", request.param)
    async with made.serving():
        yield made
    made.close()


@pytest.fixture
async def bubble(tmp_path: Path) -> AsyncIterator[World]:
    if not probe().works:
        pytest.skip(probe().bubblewrap)
    made = World(tmp_path / "run", "bubblewrap")
    async with made.serving():
        yield made
    made.close()


def task(directory: Path, setup: str = "true", test: str = "true", passed: str = "true", toml: str = STEP, **more: str) -> Path:
    """A step "one" whose set-up and tests run these commands; it is passed where `passed` holds. get.py is in /app."""
    verdict = f"if {passed}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    texts = {
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY get.py /app/\n",
        "environment/get.py": GET,
        "steps/one/instruction.md": "make done",
        "steps/one/workdir/setup.sh": f"#!/bin/sh\n{setup}\n",
        "steps/one/tests/test.sh": f"#!/bin/sh\n{test}\n{verdict}",
        **more,
    }
    made = write_task(directory, toml=toml)
    for name, text in texts.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def told(world: World, rollout: Rollout, kind: str) -> list[dict[str, Any]]:
    return [event.data for event in world.store.events(rollout.spec.rollout_id) if event.kind == kind]


def refused_in(world: World, rollout: Rollout) -> list[tuple[str, str]]:
    return [(data["phase"], f"{data['host']}:{data['port']}") for data in told(world, rollout, REFUSED)]


@pytest.mark.parametrize("launch", ["process", "pool"])
async def test_a_mirror_for_the_set_up_is_gone_before_the_agent_starts(
    boxed: World, index: Index, tmp_path: Path, launch: str
) -> None:
    passed = '[ "$(cat had)" = package ] && [ "$(cat tried)" = none ] && [ "$(cat led)" = none ]'
    made = task(tmp_path / "t", setup=index.get("wheel", "had"), passed=passed)
    acting = f"{index.get('answer', 'tried', proxy=True)}; {index.get('answer', 'led')}"
    network = NetworkConfig(setup=(index.address,))
    settings = {"command": acting, "shell": f"{ASK} && {acting}"}
    rollout, _ = await run_one(boxed, made, launch=launch, settings=settings, network=network)
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert index.asked == ["/wheel"]
    (suspicion,) = told(boxed, rollout, SUSPECTED)  # a set-up that gets its packages raises none
    assert (suspicion["trick"], suspicion["evidence"]) == ("download", index.address)
    assert refused_in(boxed, rollout) == [("agent", index.address)]
    assert told(boxed, rollout, WITHHELD) == []


@pytest.mark.parametrize("launch", ["process", "pool"])
async def test_what_the_agent_may_reach_its_commands_are_led_to(
    bubble: World, index: Index, tmp_path: Path, launch: str
) -> None:
    test = index.get("answer", "late", proxy=True)
    made = task(tmp_path / "t", test=test, passed='[ "$(cat got)" = package ] && [ "$(cat late)" = none ]')
    acting = index.get("docs", "got")
    network = NetworkConfig(agent=(index.address,))
    settings = {"command": acting, "shell": f"{ASK} && {acting}"}
    rollout, _ = await run_one(bubble, made, launch=launch, settings=settings, network=network)
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert index.asked == ["/docs"]
    assert refused_in(bubble, rollout) == [("verify", index.address)]  # the tests' own doing
    assert told(bubble, rollout, SUSPECTED) == []


async def test_what_set_up_and_tests_are_refused_is_not_the_agents(bubble: World, index: Index, tmp_path: Path) -> None:
    elsewhere = f"{PROXY} /usr/bin/python3 get.py http://pypi.org/{{}} > /dev/null"
    test = (
        f"{elsewhere.format('x')}; /usr/bin/python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000)).recv(1)'"
    )
    made = task(tmp_path / "t", setup="; ".join([elsewhere.format(number) for number in range(3)]), test=test)
    network = NetworkConfig(setup=(index.address,))
    settings = {"shell": ASK}
    rollout, _ = await run_one(bubble, made, launch="process", settings=settings, network=network)
    assert rollout.reward == 1.0 and told(bubble, rollout, SUSPECTED) == []
    assert refused_in(bubble, rollout) == [("setup", "pypi.org:80"), ("verify", "pypi.org:80"), ("verify", "127.0.0.1:8000")]
    first, _, gateway = told(bubble, rollout, REFUSED)
    assert (first["count"], first["reason"], first["step"]) == (3, "not on the allow-list", "one")
    assert gateway["reason"] == "no gateway in this phase"


@pytest.mark.parametrize("separate", [False, True])
async def test_the_tests_list_is_for_the_tests(boxed: World, index: Index, tmp_path: Path, separate: bool) -> None:
    toml = STEP + ('[verifier]\nenvironment_mode = "separate"\n' if separate else "")
    made = task(tmp_path / "t", test=index.get("pytest", "got"), passed='[ "$(cat got)" = package ]', toml=toml)
    acting = index.get("answer", "tried", proxy=True)
    rollout, _ = await run_one(boxed, made, settings={"command": acting}, network=NetworkConfig(verify=(index.address,)))
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert index.asked == ["/pytest"]
    assert len(told(boxed, rollout, SUSPECTED)) == (0 if separate else 1)  # there is no proxy where only the tests need one


@pytest.mark.parametrize(("tasks", "reward"), [("closed", 0.0), ("allowlist", 1.0), ("open", 1.0)])
async def test_a_tasks_own_list_is_granted_where_the_run_says_so(
    bubble: World, index: Index, tmp_path: Path, tasks: str, reward: float
) -> None:
    port = index.address.rpartition(":")[2]
    toml = f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["mirror.invalid:{port}", "127.0.0.2"]\n'
    toml += '[agent]\nnetwork_mode = "no-network"\n'
    named = f"{PROXY} /usr/bin/python3 get.py http://mirror.invalid:{port}/wheel > had"
    made = task(tmp_path / "t", setup=f"{named}; {index.get('x', 'own', proxy=True)}", toml=toml + STEP, passed="[ -s had ]")
    network = NetworkConfig(tasks=tasks, setup=("other.example",))  # type: ignore[arg-type]
    rollout, _ = await run_one(bubble, made, settings={"command": index.get("x", "tried", proxy=True)}, network=network)
    assert index.asked == []  # the address is not public, and only the task lists it
    refused = refused_in(bubble, rollout)
    assert ("setup", index.address) in refused and ("agent", index.address) in refused
    assert (("setup", f"mirror.invalid:{port}") not in refused) == bool(reward)  # granted: looked up, and in vain
    (withheld,) = told(bubble, rollout, WITHHELD)
    assert withheld["what"] and all(sentence.startswith("environment.network_mode") for sentence in withheld["what"])
    assert ("not granted with" in withheld["what"][0]) == (tasks == "closed")


async def test_a_connection_that_is_kept_open_from_the_set_up_is_cut(bubble: World, index: Index, tmp_path: Path) -> None:
    keep = f"""
import pathlib, socket, time
way = socket.create_connection(("127.0.0.1", 3128))
way.sendall(b"CONNECT {index.address} HTTP/1.1\\r\\n\\r\\n")
pathlib.Path("open").write_bytes(way.recv(100))
while not pathlib.Path("ask").exists():
    time.sleep(0.02)
try:
    way.sendall(b"GET /answer HTTP/1.0\\r\\n\\r\\n")
    got = way.recv(1000)
except OSError:
    got = b""
pathlib.Path("answer").write_bytes(got or b"cut")
"""
    wait = "for n in $(seq 2000); do [ -s {} ] && break; sleep 0.02; done"
    setup = f"/usr/bin/python3 keep.py > /dev/null 2>&1 &\n{wait.format('open')}"
    made = task(
        tmp_path / "t",
        setup=setup,
        passed='grep -q 200 open && [ "$(cat answer)" = cut ]',
        **{"steps/one/workdir/keep.py": keep},
    )
    network = NetworkConfig(setup=(index.address,))
    rollout, _ = await run_one(bubble, made, settings={"command": f"touch ask; {wait.format('answer')}"}, network=network)
    assert (rollout.state, rollout.reward, rollout.cause) == ("succeeded", 1.0, None)
    assert "/answer" not in index.asked


async def test_a_later_steps_set_up_has_no_list_that_an_agent_could_use(bubble: World, index: Index, tmp_path: Path) -> None:
    more = {
        "steps/two/instruction.md": "go on",
        "steps/two/workdir/setup.sh": f"#!/bin/sh\n{index.get('later', 'second', proxy=True)}\n",
        "steps/two/tests/test.sh": '#!/bin/sh\n[ "$(cat first)" = package ] && [ "$(cat second)" = none ] && r=1 || r=0\n'
        "echo $r > /logs/verifier/reward.txt\n",
    }
    toml = STEP + '[[steps]]\nname = "two"\n'
    made = task(tmp_path / "t", setup=index.get("wheel", "first"), toml=toml, **more)
    network = NetworkConfig(setup=(index.address,))
    rollout, attempt = await run_one(bubble, made, launch="process", settings={"shell": ASK}, network=network)
    assert (rollout.state, rollout.reward) == ("succeeded", 1.0), attempt
    assert index.asked == ["/wheel"]
    (data,) = told(bubble, rollout, REFUSED)
    assert (data["phase"], data["step"]) == ("setup", "two")
    assert told(bubble, rollout, SUSPECTED) == []


async def test_what_a_crashing_agent_tried_is_told_too(bubble: World, index: Index, tmp_path: Path) -> None:
    acting = f"{ASK} && {index.get('answer', 'tried', proxy=True)}; exit 3"
    network = NetworkConfig(setup=(index.address,))
    made = task(tmp_path / "t")
    rollout, attempt = await run_one(bubble, made, launch="process", settings={"shell": acting}, network=network)
    failed(rollout, CauseClass.HARNESS, "agent")
    assert [suspicion["trick"] for suspicion in told(bubble, rollout, SUSPECTED)] == ["download"]
    assert attempt.usage is not None


async def test_refusals_of_an_attempt_are_told_up_to_a_number(bubble: World, index: Index, tmp_path: Path) -> None:
    many = f"{PROXY} /usr/bin/python3 get.py $(for n in $(seq 40); do echo http://h$n.example/; done) > /dev/null"
    network = NetworkConfig(setup=(index.address,))
    rollout, _ = await run_one(bubble, task(tmp_path / "t"), settings={"command": many}, network=network)
    assert len(told(bubble, rollout, REFUSED)) == 32 and len(told(bubble, rollout, SUSPECTED)) == 40


@pytest.mark.parametrize("separate", [False, True])
async def test_a_task_that_is_run_by_hand_has_the_same_network(
    bubble: World, index: Index, tmp_path: Path, separate: bool
) -> None:
    toml = STEP + ('[verifier]\nenvironment_mode = "separate"\n' if separate else "")
    kept = '[ "$(cat had)" = package ] && [ "$(cat tried)" = none ] &&' if not separate else ""
    made = task(
        tmp_path / "t",
        setup=index.get("wheel", "had"),
        test=index.get("pytest", "got"),
        passed=f'{kept} [ "$(cat got)" = package ]',
        toml=toml,
        **{"steps/one/solution/solve.sh": f"#!/bin/sh\n{index.get('answer', 'tried', proxy=True)}\n"},
    )
    read = load_task(made)
    reach = Reach(NetworkConfig(setup=(index.address,), verify=(index.address,)), read)
    make = functools.partial(create, bubble.sandbox, gateway=("127.0.0.1", 9))
    for number in range(2):  # one Reach serves one sandbox after another
        result = await run_trial(read, make, oracle, name=f"trial-{number}", timeout=30.0, reach=reach)
        assert (result.reward, result.cause) == (1.0, None)
    assert index.asked == ["/wheel", "/pytest"] * 2
    closed = await run_trial(read, make, oracle, name="trial-closed", timeout=30.0)
    assert (closed.reward, len(index.asked)) == (0.0, 4)


async def test_what_a_sandbox_used_is_on_the_record(boxed: World, tmp_path: Path) -> None:
    burn = "head -c 3000000 /dev/zero > big; /usr/bin/python3 -c 'x = sum(range(3000000))'"
    rollout, attempt = await run_one(boxed, task(tmp_path / "t"), settings={"command": burn})
    assert rollout.state == "succeeded" and attempt.usage is not None
    assert attempt.usage.cpu_seconds > 0.01 and attempt.usage.disk_bytes >= 3_000_000 and attempt.usage.processes == 0


async def test_a_sandbox_that_cannot_be_measured_costs_nothing(world: World, tmp_path: Path) -> None:
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), settings={"kill": True, "command": "true"})
    failed(rollout, CauseClass.SANDBOX, "agent")
    assert attempt.usage is None


async def test_a_process_sandbox_is_not_held_and_goes_on(world: World, index: Index, tmp_path: Path) -> None:
    network = NetworkConfig(setup=(index.address,), verify=(index.address,))
    rollout, attempt = await run_one(world, write_task(tmp_path / "t"), network=network)
    assert (rollout.state, rollout.reward) == ("succeeded", 1.0)
    assert attempt.usage is not None and attempt.usage.cpu_seconds >= 0
