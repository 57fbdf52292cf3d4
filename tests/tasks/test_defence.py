"""Planted files are put away before the tests, in real sandboxes."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.errors import SandboxError
from whippletree.protocols import SandboxSpec
from whippletree.sandboxes import SandboxConfig
from whippletree.tasks import defence
from whippletree.tasks.defence import AWAY, put_away, survey


@pytest.fixture(params=["bubblewrap", "process"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[sandboxes.Box]:
    found = sandboxes.probe()
    if request.param == "bubblewrap" and not found.works:
        pytest.skip(found.bubblewrap)
    files = tmp_path / "files"
    (files / "tests").mkdir(parents=True)
    (files / "tests" / "conftest.py").write_text("# the project's own\n")
    (files / "main.py").write_text("print(1)\n")
    with tempfile.TemporaryDirectory(prefix="wt-") as short:
        spec = SandboxSpec(sandbox_id="d-1", files=((str(files), "/app"),), gateway_port=0)
        made = sandboxes.create(SandboxConfig(kind=request.param, root=short + "/b"), spec, gateway=("127.0.0.1", 1))
        await made.start()
        yield made
        await made.stop()


async def run(box: sandboxes.Box, command: str) -> str:
    done = await box.exec(["/bin/sh", "-c", command], timeout=20, cwd="/")
    assert done.exit_code == 0, done.output
    return done.output


async def test_what_is_new_goes_and_what_was_there_stays(box: sandboxes.Box) -> None:
    before = await survey(box, "/app")
    assert list(before.files) == ["/app/tests/conftest.py"]
    assert await put_away(box, "/app", before) == []
    await run(
        box, "echo 'import os' > app/conftest.py; mkdir -p app/bin tmp/site app/.git/hooks; ln -s /bin/true app/bin/pytest"
    )
    await run(
        box, "echo x > tmp/site/evil.pth; echo x > app/.git/hooks/post-checkout; echo x > 'app/with space'; echo x > app/new.py"
    )
    await run(box, "mkdir -p 'app/odd dir'; echo x > 'app/odd dir/sitecustomize.py'; echo '# changed' >> app/tests/conftest.py")
    found = await put_away(box, "/app", before)
    planted = ["/app/.git/hooks/post-checkout", "/app/bin/pytest", "/app/conftest.py", "/app/odd dir/sitecustomize.py"]
    assert [suspicion.evidence for suspicion in found] == [*planted, "/tmp/site/evil.pth", "/app/tests/conftest.py"]
    left = (await run(box, "find app -type f -o -type l | sort")).split("\n")
    assert left == ["app/main.py", "app/new.py", "app/tests/conftest.py", "app/with space", ""]
    assert await run(box, "cat app/tests/conftest.py") == "# the project's own\n# changed\n"
    assert [suspicion.evidence for suspicion in await put_away(box, "/app", before)] == ["/app/tests/conftest.py"]
    assert (await run(box, f"ls {AWAY} | wc -l")).strip() == "5"


async def test_a_sandbox_that_cannot_be_surveyed_is_told_as_such(box: sandboxes.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defence, "_SURVEY", defence._SURVEY.replace("find ", "no-such-find "))
    with pytest.raises(SandboxError, match=r"could not be surveyed \(exit 9\).*no-such-find"):
        await survey(box, "/app")
