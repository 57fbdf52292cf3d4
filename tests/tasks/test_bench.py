"""A verifier in a sandbox of its own: started ahead, sees only the artifacts, gone whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from whippletree.errors import SandboxError
from whippletree.tasks import Task
from whippletree.tasks.artifacts import Manifest, collect
from whippletree.tasks.bench import Bench
from whippletree.types import CauseClass

HEAD = "#!/bin/sh\nroot=${0%/tests/test.sh}\nout=$root/logs/verifier\n"
JUDGE = (
    HEAD
    + '[ -e report ] && [ ! -e secret ] && [ "$WHO" = judge ] && echo 1 > "$out/reward.txt" || echo 0 > "$out/reward.txt"\n'
)
TOML = 'artifacts = ["report"]\n[verifier.environment.env]\nWHO = "judge"\n'


class Kept:
    """Remembers the sandboxes that were made and how often each was stopped."""

    def __init__(self, make_sandbox) -> None:
        self.make_sandbox = make_sandbox
        self.made = []
        self.stopped = 0

    def __call__(self, spec):
        sandbox = self.make_sandbox(spec)
        self.made.append(sandbox)
        stop = sandbox.stop

        async def counted():
            self.stopped += 1
            await stop()

        sandbox.stop = counted
        return sandbox


@pytest.fixture
def separate(make_task) -> Task:
    return make_task(JUDGE, toml=TOML)


async def test_it_sees_the_artifacts_and_nothing_else_of_the_agents(make_sandbox, separate, tmp_path):
    kept = Kept(make_sandbox)
    sandbox = make_sandbox(separate.sandbox_spec("agent-1"))
    await sandbox.start()
    bench = Bench(separate, separate.steps[0], kept, "agent-1-v")
    try:
        bench.begin()
        await sandbox.exec(["/bin/sh", "-c", "echo x > report; echo x > secret; mkdir -p tests"], timeout=10.0)
        await sandbox.kill_all()
        manifest = await collect(separate, separate.steps[0], sandbox, tmp_path / "out")
        result = await bench.judge(sandbox, manifest, tmp_path / "out", timeout=20.0)
        assert (result.scores, result.cause, result.tampering) == ({"reward": 1.0}, None, ())
        done = await sandbox.exec(["/bin/ls"], timeout=10.0)
        assert set(done.output.split()) == {"given", "report", "secret", "tests"}  # its tests never came here
        assert bench.separate and kept.made[0].handle is not None
    finally:
        await bench.close()
        await sandbox.stop()
    assert kept.stopped == 1


async def test_a_shared_verifier_makes_no_sandbox(make_sandbox, make_task):
    kept = Kept(make_sandbox)
    task = make_task(HEAD + 'echo 1 > "$out/reward.txt"\n')
    bench = Bench(task, task.steps[0], kept, "x")
    bench.begin()
    await bench.close()
    assert kept.made == [] and not bench.separate


@pytest.mark.parametrize("wait", [0.0, 0.005, 1.0])
async def test_it_is_gone_however_far_it_came(make_sandbox, separate, wait):
    kept = Kept(make_sandbox)
    bench = Bench(separate, separate.steps[0], kept, "early-v")
    bench.begin()
    await asyncio.sleep(wait)
    await bench.close()
    await bench.close()
    with pytest.raises(SandboxError):
        await kept.made[0].exec(["/bin/true"], timeout=5.0)


class Broken:
    """A sandbox that cannot start, or never does."""

    handle = None

    def __init__(self, hangs: bool) -> None:
        self.hangs, self.stopped = hangs, False

    async def start(self):
        if self.hangs:
            await asyncio.Event().wait()
        raise SandboxError("no machine", "buy one")

    async def stop(self):
        self.stopped = True


@pytest.mark.parametrize(("hangs", "says"), [(False, "no machine"), (True, "not ready within 0.05 s")])
async def test_a_sandbox_that_does_not_start_is_a_cause(separate, tmp_path, hangs, says):
    broken = Broken(hangs)
    bench = Bench(separate, separate.steps[0], lambda spec: broken, "x")
    result = await bench.judge(broken, Manifest(step=""), tmp_path, timeout=0.05)
    assert result.cause is not None and (result.cause.cause, result.cause.phase) == (CauseClass.SANDBOX, "verify")
    assert says in result.cause.message
    await bench.close()
    assert broken.stopped


async def test_who_is_cancelled_while_it_closes_learns_of_it(separate):
    ending, over = asyncio.Event(), asyncio.Event()

    class Slow(Broken):
        async def start(self):
            try:
                await asyncio.Event().wait()
            finally:
                ending.set()
                await over.wait()

    slow = Slow(hangs=True)
    bench = Bench(separate, separate.steps[0], lambda spec: slow, "x")
    bench.begin()
    await asyncio.sleep(0)
    closing = asyncio.create_task(bench.close())
    await ending.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    over.set()
