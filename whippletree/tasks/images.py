"""The images that a task asks for, what was made of them, and what the sandboxes of a run can be made on. Pure.

Invariants (tests/tasks/test_task_images.py): two places that ask for the same image ask for it in the same words.
"""

from __future__ import annotations

from typing import Literal

from whippletree.types import Struct

BUILD_SECONDS = 600.0


class BuiltImage(Struct, frozen=True, tag=True):
    """A directory with a Dockerfile, to be built within `seconds`. Example: BuiltImage(context="/tasks/t/environment")"""

    context: str
    file: str = "Dockerfile"
    seconds: float = BUILD_SECONDS


class NamedImage(Struct, frozen=True, tag=True):
    """A ready image, to be fetched within `seconds`. Example: NamedImage(name="docker.io/library/debian:12")"""

    name: str
    seconds: float = BUILD_SECONDS


ImageSource = BuiltImage | NamedImage


class MadeImage(Struct, frozen=True):
    """What was made of an image: a directory with its root file system, and what it says of how it is to be run.

    Example: MadeImage(rootfs="/var/images/b-1f00/rootfs", environment={"LANG": "C"}, workdir="/app", user="node")
    """

    rootfs: str
    environment: dict[str, str] = {}
    workdir: str = ""
    user: str = ""


class Backing(Struct, frozen=True):
    """What the sandboxes of a run can be, as far as a task can tell. `kind`: the backend's ("": not known). `images`: whether
    places are made of images, where they need one or always; `why_not` and `next_step` say why never. `sized`: whether what a
    sandbox may write has a size.

    Example: Backing(kind="runc", images="needed")
    """

    kind: str = ""
    images: Literal["never", "needed", "always"] = "never"
    why_not: str = ""
    next_step: str = ""
    sized: bool = True

    @property
    def refusal(self) -> str:
        """What to do about a task that needs an image, where there are none."""
        if not self.why_not:
            return NEEDS_BUILD
        return f"it needs an image build, and {self.why_not}: {self.next_step}, or {_SUBSET}"


HOSTS = Backing()  # the host's programs, and nothing known beyond that
_SUBSET = "use FROM, WORKDIR, COPY and ENV only"
NEEDS_BUILD = f"it needs an image build, which is not available with this backend: {_SUBSET}"
