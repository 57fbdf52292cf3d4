"""The bundle that runc gets."""

from __future__ import annotations

import msgspec

from whippletree.sandboxes import oci


def test_a_bundle_gives_nothing_away() -> None:
    made = oci.bundle(
        argv=("/.init/sh", "-c", "read line"),
        user=oci.User(uid=7, gid=8),
        root="/r",
        network="/proc/1/fd/3",
        cgroup="/c/box",
        bindings=[("/usr", "/usr", False), ("/w", "/w", True)],
        memory_mb=2,
        processes=0,
        criu_settings="/c.conf",
    )
    read = msgspec.json.decode(msgspec.json.encode(made))
    assert read["ociVersion"].startswith("1.0") and read["root"] == {"path": "/r", "readonly": False}
    process = read["process"]
    assert process["noNewPrivileges"] is True and process["terminal"] is False and process["oomScoreAdj"] == 0
    assert process["user"] == {"uid": 7, "gid": 8}
    assert process["capabilities"] == {kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    namespaces = {entry["type"]: entry.get("path") for entry in read["linux"]["namespaces"]}
    assert namespaces == {"pid": None, "ipc": None, "uts": None, "mount": None, "network": "/proc/1/fd/3"}
    assert read["linux"]["cgroupsPath"] == "/c/box"
    assert read["linux"]["resources"] == {"memory": {"limit": 2 << 20}, "devices": [{"allow": False, "access": "rwm"}]}
    assert {"/proc/kcore", "/proc/keys"} <= set(read["linux"]["maskedPaths"])
    assert {"/proc/sys", "/proc/sysrq-trigger"} <= set(read["linux"]["readonlyPaths"])
    bindings = {mount["destination"]: mount["options"] for mount in read["mounts"] if mount["type"] == "bind"}
    assert bindings == {"/usr": ["rbind", "nosuid", "nodev", "ro"], "/w": ["rbind", "nosuid", "nodev", "rw"]}
    assert read["annotations"] == {"org.criu.config": "/c.conf"}
