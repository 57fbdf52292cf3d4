"""Packing and unpacking with tar. What is given is packed without times, owners or compression: the same bytes each time."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

from whippletree.tasks.suites.shell.parts import Draw, Exercise

# $1: an archive of the agent's. Unpacked once, below $scratch.
_HOLDS = 'mkdir -p "$scratch/{name}" && tar -xf {name} -C "$scratch/{name}" 2> /dev/null'


def packed(files: Mapping[str, bytes]) -> bytes:
    """A tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _holding(archive: str, files: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Conditions: the archive holds these files, with this content."""
    return [
        (_HOLDS.format(name=archive), f"{archive} cannot be unpacked"),
        *((f'cmp -s "$tests/same/{path}" "$scratch/{archive}/{path}"', f"{archive} lacks {path}") for path in sorted(files)),
    ]


def one(draw: Draw) -> Exercise:
    """Unpack."""
    archive, *names = draw.names(draw.randint(3, 4))
    held = {name: draw.text() for name in names}
    return Exercise(f"unpack {archive}.tar here", {f"{archive}.tar": packed(held)}, [f"tar -xf {archive}.tar"], after=held)


def two(draw: Draw) -> Exercise:
    """Pack a directory, or unpack into one."""
    folder, archive, *names = draw.names(5)
    if draw.random() < 0.5:
        files = {f"{folder}/{name}": draw.text() for name in names}
        target, flags = draw.choice([(f"{archive}.tar", "-cf"), (f"{archive}.tar.gz", "-czf")])
        compressed = [(f'[ "$(head -c 2 {target} | od -An -tx1 | tr -d " ")" = 1f8b ]', f"{target} is not compressed")]
        return Exercise(
            f"pack the directory {folder} into {target}",
            files,
            [f"tar {flags} {target} {folder}"],
            conditions=[*_holding(target, files), *(compressed if target.endswith("gz") else [])],
            expected=files,
        )
    held = {name: draw.text() for name in names}
    return Exercise(
        f"unpack {archive}.tar into a new directory {folder}",
        {f"{archive}.tar": packed(held)},
        [f"mkdir {folder}", f"tar -xf {archive}.tar -C {folder}"],
        after={f"{folder}/{name}": data for name, data in held.items()},
    )


def three(draw: Draw) -> Exercise:
    """Look into archives."""
    wanted, *names = draw.names(10)
    archives = [f"{name}.tar" for name in names[:4]]
    held = {archive: {name: draw.text() for name in draw.sample(names[4:], 3)} for archive in archives}
    chosen = draw.choice(archives)
    kind = draw.choice(["which", "word", "part"])
    if kind == "which":
        held[chosen] |= {wanted: draw.text()}
        return Exercise(
            f"which of the archives here holds a file {wanted}?",
            {archive: packed(files) for archive, files in held.items()},
            [f'for archive in *.tar; do if tar -tf "$archive" | grep -qx {wanted}; then echo "$archive"; fi; done'],
            answer=chosen,
        )
    if kind == "word":
        (word,) = draw.words(1)
        held[chosen] |= {f"{wanted}/note": f"{word}\n".encode()}
        return Exercise(
            f"submit the word in {wanted}/note, which is packed in {chosen}",
            {archive: packed(files) for archive, files in held.items()},
            [f"tar -xOf {chosen} {wanted}/note"],
            answer=word,
        )
    files = {f"{name}.{'txt' if at % 2 else 'log'}": draw.text() for at, name in enumerate(names[4:])}
    return Exercise(
        f"unpack only the .txt files of {chosen} into a new directory {wanted}",
        {chosen: packed(files)},
        [f"mkdir {wanted}", f"tar -xf {chosen} -C {wanted} --wildcards '*.txt'"],
        after={f"{wanted}/{name}": data for name, data in files.items() if name.endswith(".txt")},
        gone=[f"{wanted}/{name}" for name in files if name.endswith(".log")],
    )


def four(draw: Draw) -> Exercise:
    """Archives in archives, or several made one."""
    outer, wanted, *names = draw.names(12)
    if draw.random() < 0.5:
        (word,) = draw.words(1)
        inner = {f"{name}.tar": packed({other: draw.text() for other in names[4:7]}) for name in names[:4]}
        chosen = draw.choice(sorted(inner))
        inner[chosen] = packed({f"{names[8]}/{wanted}": f"{word}\n".encode(), names[4]: draw.text()})
        return Exercise(
            f"{outer}.tar holds archives; one of them holds a file {wanted} in some directory: submit the word in it",
            {f"{outer}.tar": packed(inner)},
            [
                f"mkdir {outer} && tar -xf {outer}.tar -C {outer}",
                f'for archive in {outer}/*.tar; do tar -xOf "$archive" --wildcards "*/{wanted}" 2>/dev/null || true; done',
            ],
            answer=word,
        )
    held = {f"{name}.tar": {other: draw.text() for other in draw.sample(names[3:9], 3)} for name in names[:3]}
    merged: dict[str, bytes] = {}
    for archive in sorted(held):
        merged |= {f"{wanted}/{name}": data for name, data in held[archive].items()}
    return Exercise(
        f"unpack the archives in {outer} in the order of their names into a new directory {wanted}, later files replacing "
        f"earlier ones, and pack that directory into {wanted}.tar.gz",
        {f"{outer}/{archive}": packed(files) for archive, files in held.items()},
        [
            f"mkdir {wanted}",
            f'for archive in {outer}/*.tar; do tar -xf "$archive" -C {wanted}; done',
            f"tar -czf {wanted}.tar.gz {wanted}",
        ],
        after=merged,
        conditions=_holding(f"{wanted}.tar.gz", merged),
    )


GRADES = (one, two, three, four)
