"""What every backend must do with processes that a command leaves in the background, holding its output."""

from __future__ import annotations

import asyncio
import os

from sandbox_suite import Make, processes_with, sh, until

from whippletree import sandboxes

_LONG = 300.0  # seconds: no test waits for it, unless exec does
_SERVE = """
import http.server, os
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
with open("port.new", "w") as file:
    file.write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
"""
_FETCH = """
import os, time, urllib.request
while not os.path.exists("port"):
    time.sleep(0.02)
print(urllib.request.urlopen(f"http://127.0.0.1:{open('port').read()}/note", timeout=20).read().decode().strip())
"""


class LeftSuite:
    """Subclasses set `kind` (and may skip)."""

    kind: str

    async def test_a_server_of_one_command_serves_the_next_ones(self, make: Make) -> None:
        """It logs each request to an output that nobody waits for any more."""
        box = await make(self.kind)
        await sh(box, "echo served > note")
        serving = 'python3 -c "$1" & echo started; exit 3'
        started = await box.exec(("/bin/sh", "-c", serving, "sh", _SERVE), timeout=_LONG)
        assert (started.exit_code, started.left_running, started.timed_out) == (3, True, False)
        assert started.output.startswith("started\n")
        for _ in range(3):
            seen = await box.exec(("python3", "-c", _FETCH), timeout=60)
            assert (seen.output, seen.left_running) == ("served\n", False)

    async def test_what_is_left_may_write_more_than_a_pipe_holds(self, make: Make) -> None:
        box = await make(self.kind)
        command = "(while ! test -e go; do sleep 0.02; done; head -c 1000000 /dev/zero; echo $? > wrote) & true"
        assert (await sh(box, command, timeout=_LONG)).left_running
        await sh(box, "touch go; while ! test -s wrote; do sleep 0.02; done", timeout=60)
        assert (await sh(box, "cat wrote")).output == "0\n"

    async def test_what_never_stops_writing_keeps_no_result(self, make: Make) -> None:
        box = await make(self.kind)
        mark = f"72{os.getpid()}"
        chatter = f"(while :; do echo x{mark}; sleep 0.05; done) & echo on"
        assert box.handle is not None
        other = sandboxes.attach(box.handle)
        blocking = asyncio.to_thread(lambda: other.exec(("/bin/sh", "-c", chatter), timeout=_LONG))
        for done in await asyncio.gather(sh(box, chatter, timeout=_LONG), blocking):
            assert (done.exit_code, done.left_running, done.timed_out) == (0, True, False)
            assert "on\n" in done.output
        assert len(processes_with(f"echo x{mark}")) >= 2
        await box.kill_all()
        assert processes_with(f"echo x{mark}") == []
        assert (await sh(box, "echo alive")).output == "alive\n"

    async def test_all_that_the_command_itself_wrote_is_there(self, make: Make) -> None:
        box = await make(self.kind)
        done = await sh(box, "sleep 600 & head -c 300000 /dev/zero | tr '\\0' x; echo end", timeout=_LONG)
        assert (len(done.output), done.output[-4:], done.left_running) == (300_004, "end\n", True)

    async def test_a_background_process_with_its_own_output_is_not_waited_for(self, make: Make) -> None:
        done = await sh(await make(self.kind), "sleep 600 >/dev/null 2>&1 & echo on", timeout=_LONG)
        assert (done.output, done.left_running) == ("on\n", False)

    async def test_more_output_is_held_than_is_read(self, make: Make) -> None:
        """What a command left behind ends with its sandbox, whoever reads."""
        box = await make(self.kind)
        mark = f"71{os.getpid()}"
        held = await asyncio.gather(*(sh(box, f"sleep {mark} &", timeout=_LONG) for _ in range(8)))
        assert all(done.left_running for done in held)
        await until(lambda: len(processes_with(f"sleep\0{mark}")) == 8, "what they left, which may begin after their end")
        await box.stop()
        assert processes_with(f"sleep\0{mark}") == []
