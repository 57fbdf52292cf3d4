"""Task checks: the oracle passes and doing nothing fails, or the check says what is wrong."""

from __future__ import annotations

import pytest

from whippletree.tasks import TrailFamily, check_task, load_task
from whippletree.tasks.trail import write_tasks

HEAD = "#!/bin/sh\nroot=${0%/tests/test.sh}\nout=$root/logs/verifier\n"
SOUND = HEAD + 'if [ "$(cat answer.txt 2>/dev/null)" = yes ]; then echo 1; else echo 0; fi > "$out/reward.txt"\n'


class Counted:
    """Counts sandboxes that were made and that were stopped."""

    def __init__(self, make_sandbox) -> None:
        self.make_sandbox, self.made, self.stopped = make_sandbox, 0, 0

    def __call__(self, spec):
        sandbox = self.make_sandbox(spec)
        self.made += 1
        stop = sandbox.stop

        async def counted():
            self.stopped += 1
            await stop()

        sandbox.stop = counted
        return sandbox


async def test_a_sound_task_has_no_problems(make_sandbox, make_task):
    counted = Counted(make_sandbox)
    check = await check_task(make_task(SOUND), counted)
    assert check.problems == ()
    assert [[result.reward for result in runs] for runs in (check.oracle, check.no_op, check.untouched)] == [
        [1.0, 1.0],
        [0.0, 0.0],
        [0.0, 0.0],
    ]
    assert counted.made == counted.stopped == 6


async def test_every_kind_of_trail_is_sound(make_sandbox, tmp_path):
    family = TrailFamily(train=0, heldout=4, depths=(1, 3), decoys=(0, 2))
    _, heldout = write_tasks(tmp_path / "tasks", family)
    for path in (heldout[0], heldout[3]):  # the shallowest without decoys, the deepest with two
        check = await check_task(load_task(path), make_sandbox)
        assert check.problems == (), check
        assert (check.oracle[0].reward, check.untouched[0].reward) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("test", "solve", "says"),
    [
        (HEAD + 'echo 1 > "$out/reward.txt"\n', "#!/bin/sh\n", "doing nothing earns 1"),
        (SOUND, "#!/bin/sh\necho no > answer.txt\n", "the oracle earns 0"),
        (SOUND, "#!/bin/sh\necho lost; exit 4\n", r"solve.sh ended with 4: lost"),
        ("#!/bin/sh\n", "#!/bin/sh\n", "the verifier failed on doing nothing"),
        (SOUND, None, "no solution/solve.sh"),
    ],
)
async def test_an_unsound_task_is_reported(make_sandbox, make_task, test, solve, says):
    counted = Counted(make_sandbox)
    check = await check_task(make_task(test, solve=solve), counted)
    assert any(says in problem for problem in check.problems), check
    assert counted.made == counted.stopped
