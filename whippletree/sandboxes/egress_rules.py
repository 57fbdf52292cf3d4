"""Whether a request to the proxy of a sandbox may leave it: pure functions over names, addresses and bytes.

A rule is "host:port", "*.name:port" for every name below one, or "*:port" for everything that is public.
Invariants (tests/sandboxes/test_sandbox_egress.py): only a listed "host:port" is allowed, in any spelling of its case and final
dot; an address that is not public is allowed only where it is itself listed, whatever name or "*" leads to it, and in whatever
form of IPv6 it is wrapped.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from whippletree.errors import SandboxError

Target = tuple[str, int]
HEAD_LIMIT = 16_384
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,62}[a-z0-9_])?)*")
_METHOD = re.compile(r"[A-Z]{1,20}")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HOP = (b"host", b"connection", b"proxy-connection", b"proxy-authorization", b"keep-alive", b"te", b"upgrade")


@dataclass(frozen=True)
class Wanted:
    """What a client of the proxy asked for. `forward`: the head to send on ("" for CONNECT, which is answered instead)."""

    target: Target
    forward: bytes


def parse(text: str) -> Target:
    """ "host:port", "*.name:port" or "*:port" as a rule. Raises SandboxError."""
    try:
        if text.startswith("*:"):
            return "*", _target(f"any{text[1:]}", None)[1]
        if text.startswith("*."):
            name, port = _target(text[2:], None)
            if is_address(name):
                raise ValueError("an address has no names below it")
            return f"*.{name}", port
        return _target(text, None)
    except ValueError as error:
        raise SandboxError(f"network.allow: {text!r}: {error}", 'write "host:port", as in "pypi.org:443"') from error


def entry(text: str, ports: Sequence[int] = (443,)) -> list[str]:
    """The rules that an entry of a list stands for; one without a port stands for these. Raises ValueError."""
    for rules in ([text], [f"{text}:{port}" for port in ports]):
        with contextlib.suppress(SandboxError):
            return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in map(parse, rules)]
    raise ValueError(f"{text!r} is neither a host nor host:port")


def request_of(head: bytes) -> Wanted:
    """The request whose head this is (with its empty line). Raises ValueError."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    words = lines[0].decode("latin-1").split(" ")
    if len(words) != 3 or not _METHOD.fullmatch(words[0]) or not words[2].startswith("HTTP/1."):
        raise ValueError("not a request to a proxy")
    method, address, version = words
    if method == "CONNECT":
        return Wanted(_target(address, None), b"")
    scheme, mark, rest = address.partition("://")
    if scheme.lower() != "http" or not mark:
        raise ValueError("neither CONNECT nor a whole http address")
    authority, path = re.fullmatch(r"([^/?#]*)([^#]*)", rest.partition("#")[0], re.DOTALL).groups()  # type: ignore[union-attr]
    first = f"{method} {path if path.startswith('/') else '/' + path} {version}".encode("latin-1")
    host = f"Host: {authority}".encode("latin-1")  # of the address: what the client says of it may be another
    kept = [line for line in lines[1:] if line.partition(b":")[0].strip().lower() not in _HOP]
    return Wanted(_target(authority, 80), b"\r\n".join((first, host, *kept, b"Connection: close", b"", b"")))


def _target(authority: str, default: int | None) -> Target:
    host, colon, port = authority.rpartition(":")
    if default is not None and (not colon or authority.endswith("]")):
        host, port = authority, str(default)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("no port")
    if host.startswith("[") and host.endswith("]"):
        return str(ipaddress.IPv6Address(host[1:-1])), int(port)
    try:
        return str(ipaddress.IPv4Address(host)), int(port)
    except ValueError:
        name = host.lower().removesuffix(".")
        if not _NAME.fullmatch(name):
            raise ValueError("not the name of a host") from None
        return name, int(port)


def is_address(host: str) -> bool:
    """True for an address, in its usual spelling; false for a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def listed(target: Target, rules: Collection[Target]) -> bool:
    """Whether a rule is about this host and port. Its addresses have to be permitted besides."""
    host, port = target
    labels = [] if is_address(host) else host.split(".")
    above = (f"*.{'.'.join(labels[number:])}" for number in range(1, len(labels)))
    return any((name, port) in rules for name in (host, *above, "*"))


def is_public(address: str) -> bool:
    """True for an address that is nobody's private, local or special one."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
        if found.teredo is not None or found.is_site_local:
            return False
    return found.is_global and not found.is_multicast


def permitted(addresses: Collection[str], port: int, rules: Collection[Target]) -> list[str]:
    """Those of a name's addresses that may be connected to."""
    return [address for address in addresses if is_public(address) or (address, port) in rules]
