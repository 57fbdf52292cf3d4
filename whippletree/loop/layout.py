"""Where things lie in a run directory, and the addresses that its processes share.

Invariants (tests/loop/test_loop_metrics.py):
- every path of a run is below its directory;
- a services file that is damaged or missing is an error that says how to make it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree.errors import ConfigurationError, words_of
from whippletree.files import write_json
from whippletree.types import Struct


class Services(Struct):
    """Addresses and choices that a run's processes share; written once, so that a restarted process comes back in its place.

    Example: Services(gateway_url="http://127.0.0.1:40001", engine_url="http://127.0.0.1:40002",
                      model_directory="/cache/tiny-3f", isolation="bubblewrap: ...", started=1.0)
    """

    gateway_url: str
    engine_url: str
    model_directory: str
    isolation: str
    started: float
    engine_is_local: bool = True
    gateway_ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Paths of one run."""

    directory: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.directory / "config.toml"

    @property
    def store(self) -> Path:
        """The store's directory."""
        return self.directory / "store"

    @property
    def secret(self) -> Path:
        """The run's signing secret, readable by its owner only."""
        return self.directory / "secret"

    @property
    def weights(self) -> Path:
        """Weights published to the engines; one directory, that of the newest version."""
        return self.directory / "weights"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints."""
        return self.directory / "checkpoints"

    @property
    def summary(self) -> Path:
        """The run in one object."""
        return self.directory / "summary.json"

    @property
    def engines(self) -> Path:
        """What the engines were graded when the run began."""
        return self.directory / "engines.json"

    @property
    def attempts(self) -> Path:
        """Files of attempts: trajectories that harnesses write."""
        return self.directory / "attempts"

    @property
    def services_file(self) -> Path:
        """Addresses of the run's processes."""
        return self.directory / "services.json"

    def log(self, name: str) -> Path:
        """A process's log."""
        return self.directory / "logs" / f"{name}.log"

    def ready(self, name: str) -> Path:
        """The file that a process writes once it serves."""
        return self.directory / "logs" / f"{name}.ready.json"

    def newest_weights(self) -> tuple[Path, int] | None:
        """Directory and policy version of the weights that were published last."""
        found = sorted(self.weights.glob("version-*"), key=lambda path: int(path.name.removeprefix("version-")))
        return (found[-1], int(found[-1].name.removeprefix("version-"))) if found else None

    def read_services(self) -> Services:
        """Raises ConfigurationError when the run was never started."""
        try:
            return msgspec.json.decode(self.services_file.read_bytes(), type=Services)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigurationError(
                f"{self.services_file} cannot be read: {words_of(error)}", "start the run with `whippletree train RUN.toml`"
            ) from error

    def write_services(self, services: Services) -> None:
        """Write atomically."""
        write_json(self.services_file, services)


def no_store(directory: Path) -> ConfigurationError:
    """What is wrong with a directory that is no run's."""
    models = sorted(path.parent for path in directory.glob("models/*/store"))
    if models:
        return ConfigurationError(f"{directory} is a grid", f"give the directory of one of its models, for example {models[0]}")
    return ConfigurationError(f"{directory} has no store", "give the directory of a run, for example runs/demo")


def recorded(directory: Path) -> Layout:
    """The layout of a run that was begun. Raises ConfigurationError where it has no store."""
    layout = Layout(directory)
    if not layout.store.is_dir():
        raise no_store(directory)
    return layout
