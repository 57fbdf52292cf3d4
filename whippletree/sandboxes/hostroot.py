"""What a sandbox without an image shows of the host: `/usr`, a few files of `/etc`, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

HOME = "/home/agent"
MERGED = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_STEPS = 200  # components and links of one path
ETC = (
    *("alternatives", "ca-certificates", "crypto-policies", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic"),
    *("mime.types", "pki/ca-trust", "pki/tls/certs", "pki/tls/openssl.cnf", "profile.d", "protocols", "services", "shells"),
    *("ssl/certs", "ssl/openssl.cnf", "terminfo"),
)


def accounts(owner: tuple[int, int]) -> dict[str, str]:
    """/etc/passwd and /etc/group: root, the sandbox's own user, and nobody."""
    uid, gid = owner
    nobody = "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    return {
        "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{gid}:agent:{HOME}:/bin/sh\n{nobody}",
        "/etc/group": f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n",
    }


def names() -> dict[str, str]:
    """Files that say which machine this is, and that it knows no other."""
    return {
        "/etc/hosts": "127.0.0.1 localhost sandbox\n",
        "/etc/hostname": "sandbox\n",
        "/etc/resolv.conf": "",
    }


def lookups() -> dict[str, str]:
    """Where names are looked up: in files."""
    return {"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n"}


def links() -> Iterator[tuple[str, str]]:
    """(path, target) of top-level directories that the host has in /usr."""
    for path in MERGED:
        if Path(path).is_symlink():
            yield path, str(Path(path).readlink())


def directories() -> Iterator[str]:
    """Directories of the host to bind, besides /usr."""
    yield from (path for path in MERGED if Path(path).is_dir() and not Path(path).is_symlink())
    yield from etc_directories()


def etc_directories() -> Iterator[str]:
    """Those of the few things of /etc that are directories."""
    yield from (f"/etc/{name}" for name in ETC if Path(f"/etc/{name}").is_dir())


def etc_files() -> dict[str, bytes]:
    """The rest of them, which is copied: a copy costs less than a mount."""
    paths = (Path("/etc", name) for name in ETC)
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


def shell(root: str = "/") -> Path:
    """The shell that becomes the init. bash reaps orphans while it waits for its input; another leaves them as zombies until
    the sandbox ends. Raises ValueError when that root file system has none."""
    for path in ("/usr/bin/bash", "/bin/bash", "/bin/sh"):
        found = resolve(root, path)
        if found is not None and found.is_file():
            return found
    raise ValueError(f"{root}: a root file system without /bin/sh")


def resolve(root: str, path: str) -> Path | None:
    """Where `path` leads inside a root file system, its links followed as inside; None when it leads nowhere."""
    waiting = path.strip("/").split("/")[::-1]
    at: list[str] = []
    for _ in range(_STEPS):
        if not waiting:
            return Path(root, *at)
        part = waiting.pop()
        if part == "..":
            del at[-1:]
        elif part not in ("", "."):
            found = Path(root, *at, part)
            if found.is_symlink():
                target = str(found.readlink())
                if target.startswith("/"):
                    at = []
                waiting += target.split("/")[::-1]
            elif found.exists():
                at.append(part)
            else:
                return None
    return None
