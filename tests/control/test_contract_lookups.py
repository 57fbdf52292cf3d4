"""whippletree/control/contract/lookups.py"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from whippletree import sandboxes
from whippletree.control.contract import lookups
from whippletree.harnesses.packages import interpreter
from whippletree.protocols import SandboxSpec
from whippletree.sandboxes import SandboxConfig

ASK = """
import socket
for flags in (0, socket.AI_ADDRCONFIG):
    try:
        socket.getaddrinfo("telemetry.example", 443, flags=flags)
    except OSError as error:
        print(type(error).__name__)
"""
ISOLATED = sandboxes.choose(SandboxConfig()).kind == "bubblewrap"


@pytest.mark.skipif(os.geteuid() != 0 or not ISOLATED, reason="only root sees name look-ups in a sandbox")
async def test_names_are_noted_and_refused(tmp_path: Path) -> None:
    switch = tmp_path / "nsswitch.conf"
    switch.write_text(lookups.SWITCH)
    root = tempfile.mkdtemp(prefix="wt-lookups-")
    read_only = (*interpreter(sys.prefix, sys.base_prefix), (str(switch), lookups.SWITCH_PATH))
    spec = SandboxSpec(sandbox_id="names", read_only=read_only)
    box = sandboxes.create(SandboxConfig(root=root), spec, gateway=("127.0.0.1", 1))
    threads = threading.active_count()
    try:
        handle = await box.start()
        for _ in range(2):  # what one leaves behind would stand in the way of the next
            with lookups.noted(handle.pid) as names:
                assert names == []
                done = await box.exec([sys.executable, "-c", ASK], timeout=20)
            assert done.output == "gaierror\ngaierror\n" and set(names) == {"telemetry.example"}
    finally:
        await box.stop()
        shutil.rmtree(root, ignore_errors=True)
    assert threading.active_count() == threads


async def test_a_process_that_is_gone_has_no_network() -> None:
    with lookups.noted(2**22) as names:
        assert names is None


def test_a_question_is_read_and_what_is_none_is_passed_over() -> None:
    query = b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + b"\x03abc\x02de\x00" + b"\x00\x01\x00\x01"
    assert lookups.question(query) == ("abc.de", len(query))
    for cut in range(len(query)):
        assert lookups.question(query[:cut]) == ("", 12)
