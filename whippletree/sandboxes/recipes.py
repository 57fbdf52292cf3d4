"""What a root file system can be made of."""

from __future__ import annotations

from whippletree.types import Struct


class Build(Struct, frozen=True, tag=True):
    """A directory with a Dockerfile, to be built. Example: Build(context="/tasks/t/environment")"""

    context: str
    file: str = "Dockerfile"


class Archive(Struct, frozen=True, tag=True):
    """An archive of an image, as `podman save` writes it (oci-archive, docker-archive). Example: Archive(path="/i/base.tar")"""

    path: str


class Tree(Struct, frozen=True, tag=True):
    """A tar archive of a root file system; this takes no podman. Example: Tree(path="/i/bookworm.tar")"""

    path: str


class Reference(Struct, frozen=True, tag=True):
    """An image by its name in a registry, or in podman's own store. Example: Reference(name="docker.io/library/debian:12")"""

    name: str


Source = Build | Archive | Tree | Reference
