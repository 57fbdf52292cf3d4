"""The subset of Dockerfiles that needs no image build: FROM, WORKDIR, COPY, ENV.

A task that stays within it can run on the host's root file system with its files copied in. Whatever else a Dockerfile says
needs an image: it is built where the sandboxes take images, and refused at load where they do not, because a task whose
environment is only half there would be judged by luck.

Invariants (tests/tasks/test_dockerfile.py):
- every instruction is either honoured, or named with its line number as what needs a build, or as an error;
- no COPY source lies outside the build context, not through a symbolic link either;
- the paths inside are absolute and free of "..".
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from whippletree.errors import TaskError, words_of
from whippletree.tasks.images import NEEDS_BUILD, ImageSource

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


class NeedsBuild(TaskError):
    """A Dockerfile says something that takes an image build; the message names file and line."""


@dataclass
class Environment:
    """What a Dockerfile of the subset says. `files`: (host path, absolute path inside); a directory's contents are merged.
    With an `image` the rest is that image's to say, and a work directory of "" is the image's."""

    base_image: str = ""
    workdir: str = "/"
    files: list[tuple[str, str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    image: ImageSource | None = None


def read_dockerfile(path: Path) -> Environment:
    """Read `path`; its directory is the build context. Raises TaskError with file and line: NeedsBuild beyond the subset."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {words_of(error)}", "a task needs environment/Dockerfile") from error
    environment = Environment()
    for number, line in _instructions(text):
        word, _, rest = line.partition(" ")
        where = f"{path}:{number}"
        match word.upper():
            case "FROM":
                _from(environment, rest.strip(), where)
            case "WORKDIR":
                value = _expand(rest.strip().strip("\"'"), environment.variables, where)
                environment.workdir = _inside(value, environment.workdir, where)
            case "ENV":
                environment.variables |= _variables(rest, environment.variables, where)
            case "COPY":
                environment.files += _copy(rest, path.parent, environment, where)
            case other:
                raise NeedsBuild(f"{where}: {other} is not supported", NEEDS_BUILD)
    if not environment.base_image:
        raise TaskError(f"{path}: no FROM", "name the base image in the first line")
    return environment


def _instructions(text: str) -> list[tuple[int, str]]:
    """(line number, instruction) with comments dropped and continued lines joined."""
    found: list[tuple[int, str]] = []
    start, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        start = start if parts else number
        continued = line.endswith("\\")
        parts.append(line[:-1].strip() if continued else line)
        if not continued:
            found.append((start, " ".join(parts)))
            parts = []
    if parts:
        found.append((start, " ".join(parts)))
    return found


def _from(environment: Environment, rest: str, where: str) -> None:
    if environment.base_image:
        raise NeedsBuild(f"{where}: a second FROM", NEEDS_BUILD)
    words = [word for word in rest.split() if not word.startswith("--platform=")]
    named = len(words) == 3 and words[1].upper() == "AS"
    if len(words) != 1 and not named:
        raise TaskError(f"{where}: FROM {rest} is not of the form FROM image [AS name]", "name one image")
    environment.base_image = words[0]


def _words(text: str, where: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise TaskError(f"{where}: {error}", "close the quote") from error


def _expand(text: str, variables: dict[str, str], where: str) -> str:
    """Replace $NAME and ${NAME} by variables set above."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in variables:
            raise NeedsBuild(f"{where}: ${name} is not set above", "set it with ENV, or write the value out")
        return variables[name]

    expanded = _VARIABLE.sub(value, text)
    if "${" in expanded:
        raise NeedsBuild(f"{where}: {text} uses a substitution other than $NAME and ${{NAME}}", "write the value out")
    return expanded


def _variables(rest: str, known: dict[str, str], where: str) -> dict[str, str]:
    words = _words(rest, where)
    if not words:
        raise TaskError(f"{where}: ENV without a variable", "write ENV NAME=value")
    if "=" not in words[0]:  # the older form: ENV NAME value with spaces
        pairs = [(words[0], rest.strip()[len(words[0]) :].strip())]
    else:
        bad = [word for word in words if "=" not in word]
        if bad:
            raise TaskError(f"{where}: {bad[0]} is not of the form NAME=value", "quote values that contain spaces")
        pairs = [(name, value) for name, _, value in (word.partition("=") for word in words)]
    return {name: _expand(value, known, where) for name, value in pairs}


def _inside(path: str, workdir: str, where: str) -> str:
    """An absolute, normal path inside."""
    if ".." in path.split("/"):
        raise NeedsBuild(f"{where}: {path} contains ..", "write the path without ..")
    return posixpath.normpath(posixpath.join("/", workdir, path))


def _copy(rest: str, context: Path, environment: Environment, where: str) -> list[tuple[str, str]]:
    words = _words(rest, where)
    flags = [word for word in words if word.startswith("--")]
    if flags:
        raise NeedsBuild(f"{where}: COPY {flags[0]} is not supported", NEEDS_BUILD)
    if len(words) < 2 or words[0].startswith("["):
        kind = NeedsBuild if words and words[0].startswith("[") else TaskError
        raise kind(f"{where}: COPY {rest.strip()} is not of the form COPY source... target", "give a source and a target")
    words = [_expand(word, environment.variables, where) for word in words]
    target = _inside(words[-1], environment.workdir, where)
    sources = [source for word in words[:-1] for source in _sources(word, context, where)]
    into = words[-1].endswith("/") or words[-1] in (".", "") or len(sources) > 1
    pairs: list[tuple[str, str]] = []
    for source in sources:
        _check_links(source, context, where)
        is_file = source.is_file()
        pairs.append((str(source), posixpath.join(target, source.name) if into and is_file else target))
    return pairs


def _sources(pattern: str, context: Path, where: str) -> list[Path]:
    if ".." in pattern.split("/"):
        raise TaskError(f"{where}: COPY {pattern} leaves the build context", f"keep the files below {context}")
    relative = pattern.strip("/") or "."
    if any(mark in relative for mark in "*?["):
        found = sorted(context.glob(relative))
    else:
        found = [context / relative] if (context / relative).exists() else []
    if not found:
        raise TaskError(f"{where}: COPY {pattern}: no such file below {context}", "add the file or mend the line")
    return found


def _check_links(source: Path, context: Path, where: str) -> None:
    """Refuse a source that is, or holds, a symbolic link out of the build context."""
    root = context.resolve()
    for path in [source, *(source.rglob("*") if source.is_dir() else ())]:
        if not path.resolve().is_relative_to(root):
            raise TaskError(f"{where}: {path} leads out of the build context", f"keep the files below {context}")
