"""What backends with a private layer on a shared root file system isolate."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandbox_suite import NOTHING, Make, config_of, left_behind, orphans_are_reaped, sh, spec_of

from whippletree import sandboxes
from whippletree.errors import SandboxError

AWAY = ("127.0.0.1", 9)


class IsolationSuite:
    """Subclasses set `kind` (and may skip)."""

    kind: str

    async def test_no_capability_and_no_new_privilege(self, make: Make) -> None:
        box = await make(self.kind)
        for process in ("self", "1"):
            status = (await sh(box, f"cat /proc/{process}/status")).output
            fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
            assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
            assert fields["NoNewPrivs"] == "1"
        refused = await sh(box, "touch /usr/x; touch /etc/new && echo wrote; mount -t tmpfs x /app; chroot /app true")
        assert "wrote" not in refused.output and refused.exit_code != 0

    async def test_it_has_its_own_processes_host_name_network_and_ipc(self, make: Make) -> None:
        box = await make(self.kind)
        kinds = ("ipc", "net", "pid", "mnt", "uts")
        done = await sh(box, "hostname; " + "".join(f"readlink /proc/self/ns/{kind};" for kind in kinds))
        name, *namespaces = done.output.split()
        assert name == "sandbox"
        assert not {str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in kinds} & set(namespaces)
        down = 'import socket; socket.create_connection(("1.1.1.1", 80), 2)'
        assert "unreachable" in (await sh(box, f"python3 -c '{down}' 2>&1 | tail -1")).output

    async def test_what_is_written_is_private_even_below_usr(self, make: Make) -> None:
        one, two = await make(self.kind, sandbox_id="one"), await make(self.kind, sandbox_id="two")
        done = await sh(one, "echo x > /usr/local/bin/wt-own; rm /usr/bin/env; echo y > /etc/own; ls /usr/bin/env", user="root")
        assert "No such file" in done.output
        seen = await sh(two, "ls /usr/local/bin/wt-own /etc/own; ls /usr/bin/env")
        assert seen.output.count("No such file") == 2 and seen.output.endswith("/usr/bin/env\n")
        assert Path("/usr/bin/env").exists() and not Path("/usr/local/bin/wt-own").exists()

    async def test_a_read_only_binding_is_visible_and_read_only(self, make: Make, tmp_path: Path) -> None:
        for name in ("d", 'with "comma", and space'):
            (tmp_path / name).mkdir()
            (tmp_path / name / "f").write_text("bound")
            box = await make(self.kind, read_only=((str(tmp_path / name), "/opt/data/d"),))
            done = await sh(box, "cat /opt/data/d/f; echo x > /opt/data/d/f")
            assert done.output.startswith("bound") and done.exit_code != 0
            assert (await sh(box, "touch /opt/data/d/g", user="root")).exit_code != 0
        with pytest.raises(SandboxError, match=r"did not start.*nowhere"):
            await make(self.kind, read_only=(("/nowhere", "/opt/x"),))

    async def test_nothing_inside_can_end_the_sandbox(self, make: Make) -> None:
        box = await make(self.kind)
        await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1; kill -9 -1")
        await sh(box, "kill -9 1; kill -TERM 1; kill -HUP 1; kill -INT 1; kill -SEGV 1", user="root")
        attach = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.ptrace(16, 1, 0, 0), ctypes.get_errno())"
        assert (await box.exec(("python3", "-c", attach), timeout=20)).output == "-1 1\n"
        assert (await sh(box, "echo alive")).output == "alive\n"

    async def test_its_own_limit_of_space_holds(self, make: Make, sandbox_root: Path) -> None:
        for space, said in ((1, "No space left"), (0, "3000000")):
            config = config_of(self.kind, sandbox_root, space_mb=space)
            box = sandboxes.create(config, spec_of(), gateway=AWAY)
            try:
                await box.start()
                assert said in (await sh(box, "head -c 3000000 /dev/zero > x; wc -c < x")).output
            finally:
                await box.stop()
        assert left_behind(sandbox_root) == NOTHING

    async def test_orphans_are_reaped(self, make: Make) -> None:
        await orphans_are_reaped(await make(self.kind))
