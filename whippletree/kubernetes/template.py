"""A user's template, made into one object of a kind.

The template is YAML with Jinja expressions, rendered in Jinja's immutable sandbox: it can call nothing and reach no file. A
value that is not a plain word has to pass through `quote` or `tojson`; one that does not is refused, so no text of a task can
become YAML.

Invariants (tests/control/kubernetes/test_kubernetes_template.py):
- whatever the values are, the object has the structure that the template's author wrote, and `quote` gives back the very text;
- the rendered text is exactly one object of the kind; an unknown variable, or anything else, is an error that names
  the template.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jinja2
import msgspec
import yaml
from jinja2.sandbox import ImmutableSandboxedEnvironment

from whippletree.errors import ConfigurationError, words_of
from whippletree.kubernetes.objects import Manifest

PLAIN = re.compile(r"[A-Za-z0-9/]([A-Za-z0-9._/@:+=-]*[A-Za-z0-9_/=-])?")  # cannot be anything but one YAML scalar


class Quoted(str):
    """Text that is one YAML value already."""

    __slots__ = ()


class _Unquoted(Exception):
    """A value that may not stand in YAML as it is."""


def quote(value: object) -> Quoted:
    """Any value as YAML on one line that reads back as the very same: a double-quoted string, a number, a list, a mapping."""
    return Quoted(_yaml(msgspec.to_builtins(value)))


def _yaml(value: object) -> str:
    """JSON, but for what YAML 1.1 reads otherwise: exponents without a point are text there, and characters beyond 16 bits."""
    match value:
        case dict():
            return "{" + ", ".join(f"{_yaml(str(name))}: {_yaml(item)}" for name, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(_yaml(item) for item in value) + "]"
        case float():
            mantissa, exponent, power = json.dumps(value, allow_nan=False).partition("e")
            return f"{mantissa}{'' if '.' in mantissa else '.0'}{exponent}{power}"
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return "".join(char if " " <= char <= "~" else _escape(ord(char)) for char in text)
    return json.dumps(value)


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _finalize(value: Any) -> str:
    """What an expression may print: quoted text, plain words, numbers."""
    match value:
        case Quoted() | jinja2.Undefined():
            return str(value)  # an undefined one raises
        case bool() | int() | float() | None:
            return quote(value)
        case str() if PLAIN.fullmatch(value):
            return value
    raise _Unquoted(f"the value {str(value)[:60]!r} is no plain word")


class Template:
    """A template that was read and compiled once."""

    def __init__(self, text: str, origin: str) -> None:
        """`origin` names the template in errors. Raises ConfigurationError when it is no valid Jinja."""
        self.origin = origin
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=_finalize, autoescape=False)
        environment.filters.update(quote=quote, tojson=quote)
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigurationError(f"{origin}: line {error.lineno}: {error.message}", "mend the template") from error

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a file. Raises ConfigurationError."""
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"cannot read the template {path}: {words_of(error)}", "set `template` to a file"
            ) from error

    def render_as(self, version: str, kind: str, names: Mapping[str, object], hints: Mapping[str, str]) -> Manifest:
        """The one object that the template describes, as its author wrote it. `hints`: the next step where an error is about
        that name. Raises ConfigurationError."""
        try:
            text = self._template.render(names)
        except _Unquoted as error:
            raise self._wrong(str(error), "write {{ name | quote }}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError) as error:
            found = (hint for name, hint in hints.items() if f"'{name}'" in str(error))
            raise self._wrong(str(error), next(found, "mend the template")) from error
        try:
            documents = [document for document in yaml.safe_load_all(text) if document is not None]
        except yaml.YAMLError as error:
            raise self._wrong(f"not YAML once rendered: {error}", "look at the template's indentation and quotes") from error
        if len(documents) != 1 or not isinstance(documents[0], dict):
            raise self._wrong(f"{len(documents)} documents", f"a template is exactly one {kind}")
        made: Manifest = documents[0]
        if (made.get("apiVersion"), made.get("kind")) != (version, kind):
            raise self._wrong(f"{made.get('apiVersion')} {made.get('kind')}", f"a template is one {version} {kind}")
        return made

    def _wrong(self, cause: str, next_step: str) -> ConfigurationError:
        return ConfigurationError(f"{self.origin}: {cause}", next_step)


def table(holder: Manifest, name: str, origin: str, shape: str) -> Manifest:
    """The mapping of that name. `shape` tells what the object should have. Raises ConfigurationError."""
    value = holder.get(name)
    if not isinstance(value, dict):
        raise ConfigurationError(f"{origin}: {name} is missing or no mapping", shape)
    return value


def marked(holder: Manifest, labels: dict[str, str], annotations: dict[str, str]) -> Manifest:
    """Metadata with the author's labels and annotations, and ours over them."""
    meta = holder.get("metadata") or {}
    theirs = meta if isinstance(meta, dict) else {}
    return {
        "labels": {**(theirs.get("labels") or {}), **labels},
        "annotations": {**(theirs.get("annotations") or {}), **annotations},
    }
