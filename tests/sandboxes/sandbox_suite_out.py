"""What every backend must do besides: output as it comes, copies out, usage, users."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from sandbox_suite import Make, processes_with, sh, until

from whippletree import sandboxes
from whippletree.errors import SandboxError


class OutSuite:
    """Subclasses set `kind` (and may skip)."""

    kind: str

    async def test_output_comes_in_pieces_while_the_command_runs(self, make: Make) -> None:
        box = await make(self.kind)
        pieces: list[bytes] = []
        running = asyncio.create_task(
            sh(box, "echo one; while ! test -e go; do sleep 0.02; done; echo two", on_output=pieces.append)
        )
        await until(lambda: pieces == [b"one\n"], "the first piece")
        await sh(box, "touch go")
        assert (await running).output == "one\ntwo\n"
        assert b"".join(pieces) == b"one\ntwo\n"

    async def test_pieces_end_at_the_limit(self, make: Make) -> None:
        pieces: list[bytes] = []
        done = await sh(await make(self.kind), "head -c 300000 /dev/zero", output_limit=1000, on_output=pieces.append)
        assert (done.truncated, sum(map(len, pieces)), len(done.output)) == (True, 1000, 1000)

    async def test_what_a_listener_raises_ends_the_command(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"74{os.getpid()}"

        def listener(piece: bytes) -> None:
            raise KeyError(piece)

        with pytest.raises(KeyError):
            await sh(box, f"echo x; sleep {mark}", on_output=listener)
        assert box.handle is not None
        with pytest.raises(KeyError):
            other = sandboxes.attach(box.handle)
            await asyncio.to_thread(
                lambda: other.exec(("/bin/sh", "-c", f"echo x; sleep {mark}"), timeout=20, on_output=listener)
            )
        await until(lambda: not processes_with(f"sleep\0{mark}"), "the command's end")

    async def test_a_directory_and_a_file_are_copied_out(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        await sh(box, "mkdir -p a/b a/empty; echo f > a/f; printf '#!/bin/sh\\n' > a/b/x; chmod 4700 a/b/x; chmod 0 a/f")
        fetched = await box.get("/app/a", tmp_path / "copy")
        assert (fetched.files, fetched.bytes, fetched.skipped) == (2, 12, ())
        found = sorted(str(path.relative_to(tmp_path)) for path in (tmp_path / "copy").rglob("*"))
        assert found == ["copy/b", "copy/b/x", "copy/empty", "copy/f"]
        assert (tmp_path / "copy" / "f").read_text() == "f\n"
        assert (tmp_path / "copy" / "b" / "x").stat().st_mode & 0o7777 == 0o755
        assert (tmp_path / "copy" / "f").stat().st_uid == os.geteuid()
        await box.get("/app/a/b/x", tmp_path / "x")
        assert (tmp_path / "x").read_text() == "#!/bin/sh\n"

    async def test_copies_out_follow_no_link_and_block_on_nothing(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        await sh(box, "mkdir a; ln -s /etc/passwd a/l; ln -s /etc a/d; mkfifo a/pipe; echo x > a/x; ln -s a up")
        fetched = await box.get("/app/a", tmp_path / "a")
        assert fetched.skipped == ("a/d", "a/l", "a/pipe")
        assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]
        for path in ("/app/a/l", "/app/a/pipe", "/app/up", "/app/up/x", "/app/none", "/app/../etc", "/"):
            with pytest.raises(SandboxError):
                await box.get(path, tmp_path / "no")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]

    async def test_copies_out_are_limited_and_replace_nothing(self, make: Make, tmp_path: Path) -> None:
        box = await make(self.kind)
        await sh(box, "mkdir a; head -c 3000 /dev/zero > a/x; head -c 3000 /dev/zero > a/y; truncate -s 10M huge")
        with pytest.raises(SandboxError, match="more than 5000 bytes"):
            await box.get("/app/a", tmp_path / "a", limit=5000)
        with pytest.raises(SandboxError, match="more than 5000 bytes"):
            await box.get("/app/huge", tmp_path / "huge", limit=5000)
        await sh(box, "cd a && for n in $(seq 120); do mkdir d && cd d || exit; done")
        with pytest.raises(SandboxError, match="deeper than"):
            await box.get("/app/a", tmp_path / "a")
        (tmp_path / "taken").symlink_to("nowhere")
        with pytest.raises(SandboxError, match="File exists"):
            await box.get("/app/a/x", tmp_path / "taken")
        assert [path.name for path in tmp_path.iterdir()] == ["taken"]
        with pytest.raises(SandboxError, match="can be written"):
            await box.get("/app/a/x", tmp_path / "no" / "x")

    async def test_usage_counts_processes_time_memory_and_files(self, make: Make) -> None:
        box = await make(self.kind)
        before = await box.usage()
        assert before.processes == 0
        await sh(box, "setsid -f sleep 600 >/dev/null 2>&1; head -c 500000 /dev/urandom > big; python3 -c 'sum(range(10**7))'")
        after = await box.usage()
        assert after.processes == 1
        assert after.disk_bytes - before.disk_bytes >= 500_000
        assert box.handle is not None
        assert after.cpu_seconds - before.cpu_seconds > 0.05
        if before.memory_peak_bytes is not None and after.memory_peak_bytes is not None:
            assert after.memory_peak_bytes >= before.memory_peak_bytes > 0
        else:
            assert not any("memory" in path for path in box.handle.cgroups)
        await box.kill_all()
        assert (await box.usage()).processes == 0


class UserSuite:
    """Backends whose commands can be of several users."""

    kind: str

    async def test_commands_run_as_any_user_of_the_sandbox(self, make: Make) -> None:
        box = await make(self.kind)
        seen = await sh(box, "id -u; id -un; id -g; echo $HOME $USER", user="nobody", cwd="/tmp")
        assert seen.output.split() == ["65534", "nobody", "65534", "/", "nobody"]
        number = await sh(box, "id -u; id -g; touch /tmp/by-number; stat -c %u /tmp/by-number", user="4321")
        assert number.output.split() == ["4321"] * 3
        assert (await sh(box, "stat -c %u /tmp/by-number; rm -f /tmp/by-number")).output.startswith("4321\nrm:")
        own = (await sh(box, "id -u")).output
        assert (await sh(box, "id -u", user="agent")).output == own

    async def test_a_name_that_is_nobodys_is_refused(self, make: Make) -> None:
        box = await make(self.kind)
        for user in ("no-such-user", "-1", "99999999999", "root:", "٣"):
            with pytest.raises(SandboxError, match="no user"):
                await sh(box, "true", user=user)

    async def test_root_may_keep_house_and_no_more(self, make: Make) -> None:
        box = await make(self.kind)
        await sh(box, "mkdir private; echo agent > private/f; chmod 0 private/f; chmod 700 private")
        seen = await sh(
            box,
            "id -u; cat private/f; chown 12:13 private/f; stat -c %u:%g private/f; su_ok=1; kill -0 $$ && echo k",
            user="root",
        )
        assert seen.output.split() == ["0", "agent", "12:13", "k"]
        status = (await sh(box, "cat /proc/self/status", user="0")).output
        caps = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
        assert {caps["CapPrm"], caps["CapEff"], caps["CapBnd"]} == {f"{0b11101011:016x}"}
        assert (caps["CapInh"], caps["CapAmb"], caps["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
        refused = await sh(
            box,
            "mount -t tmpfs x /app; echo b > /proc/sysrq-trigger; echo 1 > /proc/sys/kernel/panic; mknod /tmp/d b 8 0;"
            " unshare -n true; nsenter -t 1 -m true; date -s 2001-01-01; chroot /tmp /bin/true; kill -9 1; echo done",
            user="root",
        )
        assert refused.output.splitlines()[-1] == "done"
        assert refused.output.count("\n") >= 8, refused.output
        assert (await sh(box, "test -b /tmp/d || echo none")).output == "none\n"

    async def test_the_kill_of_a_users_command_takes_all_of_it(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"73{os.getpid()}"
        command = f"setsid setpriv --reuid 77 --clear-groups sleep {mark}1 & setsid -f sleep {mark}2; sleep {mark}3"
        assert (await sh(box, command, timeout=0.6, user="root")).timed_out
        assert processes_with(f"sleep\0{mark}") == []
