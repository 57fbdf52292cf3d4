"""The proxy of a sandbox and its rules: what may leave, and that everything else is refused and reported."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from whippletree.errors import SandboxError
from whippletree.protocols import NetworkRefusal
from whippletree.sandboxes import egress, egress_rules
from whippletree.sandboxes.egress import Egress

Ask = Callable[[bytes], Awaitable[bytes]]


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("pypi.org:443", ("pypi.org", 443)),
        ("PyPI.org.:443", ("pypi.org", 443)),
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:80", ("::1", 80)),
        ("[0:0::0001]:80", ("::1", 80)),
        ("*:443", ("*", 443)),
        ("*.PyPI.org:443", ("*.pypi.org", 443)),
    ],
)
def test_rules(text: str, target: tuple[str, int]) -> None:
    assert egress_rules.parse(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *("pypi.org", "pypi.org:", ":443", "pypi.org:0", "a b:1", "x:99999", "x:٣", "[x]:1", "http://x:1"),
        *("*", "*:", "*:0", "*x:1", "*.:1", "a.*:1", "*.1.2.3.4:1", "*.[::1]:1", "**:1", "*.*:1"),
    ],
)
def test_what_is_no_rule_says_what_to_write(text: str) -> None:
    with pytest.raises(SandboxError, match=r"network\.allow.*host:port"):
        egress_rules.parse(text)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("1.1.1.1", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:1.1.1.1", True),
        ("64:ff9b::1.1.1.1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff0e::1", False),
        ("::ffff:127.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::10.0.0.1", False),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert egress_rules.is_public(address) is public


def test_an_address_that_is_not_public_must_be_listed_itself() -> None:
    rules = {("inside.example", 80), ("10.0.0.1", 80)}
    assert egress_rules.permitted(["10.0.0.1", "10.0.0.2", "1.1.1.1"], 80, rules) == ["10.0.0.1", "1.1.1.1"]
    assert egress_rules.permitted(["10.0.0.1"], 81, rules) == []


@pytest.mark.parametrize(
    ("host", "rules"),
    [("a.example", ["a.example"]), ("a.b.example", ["*.b.example", "*.example"]), ("1.1.1.1", ["1.1.1.1"]), ("::1", ["[::1]"])],
)
def test_a_rule_is_about_a_host_the_names_below_one_or_everything(host: str, rules: list[str]) -> None:
    for rule in (*rules, "*"):
        assert egress_rules.listed((host, 443), {egress_rules.parse(f"{rule}:443")})
    others = {
        egress_rules.parse(rule) for rule in (f"*.{'b' if ':' in host else host.replace('1', 'x')}:443", "*:80", "example:443")
    }
    assert not egress_rules.listed((host, 443), others | {("*.1", 443), ("*.1.1", 443)})


def test_everything_public_is_not_what_is_private() -> None:
    rules = {egress_rules.parse("*:80"), egress_rules.parse("*.inside.example:80")}
    addresses = ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "1.1.1.1"]
    assert egress_rules.permitted(addresses, 80, rules) == ["1.1.1.1"]


def test_an_entry_without_a_port_stands_for_the_usual_ones() -> None:
    assert egress_rules.entry("a.example") == ["a.example:443"]
    assert egress_rules.entry("*.a.example", (443, 80)) == ["*.a.example:443", "*.a.example:80"]
    assert egress_rules.entry("A.example:8080", (443, 80)) == ["a.example:8080"]
    assert egress_rules.entry("[::1]") == ["[::1]:443"] and egress_rules.entry("[::1]:80") == ["[::1]:80"]
    assert egress_rules.entry("*") == ["*:443"]
    for wrong in ("", "10.0.0.0/8", "https://a.example", "a.example:x", "a b", "::1"):
        with pytest.raises(ValueError, match="neither a host nor host:port"):
            egress_rules.entry(wrong)


def test_a_whole_address_becomes_a_path_and_headers_of_the_hop_stay_behind() -> None:
    head = b"GET http://A.example:81/x?q=http://b HTTP/1.1\r\nHost: other\r\nProxy-Authorization: x\r\nX: y\r\n\r\n"
    wanted = egress_rules.request_of(head)
    assert wanted.target == ("a.example", 81)
    assert wanted.forward == b"GET /x?q=http://b HTTP/1.1\r\nHost: A.example:81\r\nX: y\r\nConnection: close\r\n\r\n"
    assert egress_rules.request_of(b"GET http://[::1]?q HTTP/1.0\r\n\r\n") == egress_rules.Wanted(
        ("::1", 80), b"GET /?q HTTP/1.0\r\nHost: [::1]\r\nConnection: close\r\n\r\n"
    )
    assert egress_rules.request_of(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n") == egress_rules.Wanted(("a.example", 443), b"")


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"CONNECT a HTTP/1.1",
        b"GET https://a/ HTTP/1.1",
        b"GET http://u@a/ HTTP/1.1",
        b"\x16\x03\x01",
        b"get http://a/ HTTP/1.1",
    ],
)
def test_what_is_no_request_to_a_proxy(head: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        egress_rules.request_of(head + b"\r\n\r\n")


class Proxy:
    """A proxy on the host, as a sandbox sees it, and a server that it may lead to."""

    def __init__(
        self, egress: Egress, address: tuple[str, int], server: tuple[str, int], refusals: list[NetworkRefusal]
    ) -> None:
        self.egress, self.address, self.server, self.refusals = egress, address, server, refusals

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.server[1]}"

    async def ask(self, data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), 60)
        finally:
            writer.close()

    async def refused(self, data: bytes, reason: str, host: str = "", port: int = 0) -> NetworkRefusal:
        """Ask for what must be refused; the one report of it."""
        before = time.time()
        answer = await self.ask(data)
        assert answer.startswith(b"HTTP/1.1 403 ") and reason.encode() in answer
        (refusal,) = self.refusals
        self.refusals.clear()
        assert (refusal.host, refusal.port) == (host, port) and reason in refusal.reason
        assert before <= refusal.time <= time.time()
        return refusal


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + head.partition(b"\r\n")[0])
    if b"/hold" in head:
        await writer.drain()
        await reader.read()
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    refusals: list[NetworkRefusal] = []
    made = Egress(listener, refusals.append)
    address = listener.getsockname()
    await made.start()
    yield Proxy(made, address, server.sockets[0].getsockname(), refusals)
    await made.close()
    server.close()


async def test_a_listed_address_is_reached_both_ways(proxy: Proxy) -> None:
    proxy.egress.allow([egress_rules.parse(proxy.target)])
    plain = await proxy.ask(f"GET http://{proxy.target}/a HTTP/1.0\r\n\r\n".encode())
    assert plain.endswith(b"GET /a HTTP/1.0")
    tunnel = await proxy.ask(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\nGET /b HTTP/1.0\r\n\r\n".encode())
    assert tunnel.startswith(b"HTTP/1.1 200 ") and tunnel.endswith(b"GET /b HTTP/1.0")
    assert proxy.refusals == []


async def test_everything_else_is_refused_and_reported(proxy: Proxy) -> None:
    port = proxy.server[1]
    await proxy.refused(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\n".encode(), "not on the allow-list", "127.0.0.1", port)
    proxy.egress.allow([egress_rules.parse(proxy.target), ("localhost", 1)])
    await proxy.refused(b"CONNECT github.com:443 HTTP/1.1\r\n\r\n", "not on the allow-list", "github.com", 443)
    await proxy.refused(f"GET http://127.1:{port}/ HTTP/1.1\r\n\r\n".encode(), "not on the allow-list", "127.1", port)
    await proxy.refused(f"CONNECT 127.0.0.1:{port + 1} HTTP/1.1\r\n\r\n".encode(), "not on", "127.0.0.1", port + 1)
    await proxy.refused(b"GET / HTTP/1.1\r\n\r\n", "neither CONNECT nor a whole http address")
    await proxy.refused(b"\x16\x03\x01\r\n\r\n", "not a request to a proxy")


async def test_a_name_for_a_private_address_is_refused_unless_the_address_is_listed(proxy: Proxy) -> None:
    port = proxy.server[1]
    ask = f"GET http://LocalHost.:{port}/n HTTP/1.0\r\n\r\n".encode()
    proxy.egress.allow([("localhost", port)])
    refusal = await proxy.refused(ask, "not a public address", "localhost", port)
    assert "127.0.0.1" in refusal.address.split(", ")
    proxy.egress.allow([("localhost", port), ("127.0.0.1", port)])
    assert (await proxy.ask(ask)).endswith(b"GET /n HTTP/1.0")


async def test_a_list_that_is_taken_away_cuts_what_is_open(proxy: Proxy) -> None:
    proxy.egress.allow([egress_rules.parse(proxy.target)])
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\nGET /hold HTTP/1.0\r\n\r\n".encode())
    await reader.readuntil(b"GET /hold HTTP/1.0")
    proxy.egress.allow([])
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    await proxy.refused(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\n".encode(), "not on", *proxy.server)


async def test_everything_public_leads_to_no_address_of_this_machine(proxy: Proxy) -> None:
    host, port = proxy.server
    proxy.egress.allow([("*", port)])
    await proxy.refused(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\n".encode(), "not a public address", host, port)
    for name in ("localhost", "2130706433", "0x7f.1"):  # however it is spelled
        ask = f"GET http://{name}:{port}/ HTTP/1.0\r\n\r\n".encode()
        assert "127.0.0.1" in (await proxy.refused(ask, "not a public address", name, port)).address.split(", ")
    await proxy.refused(f"CONNECT {host}:{port + 1} HTTP/1.1\r\n\r\n".encode(), "not on the", host, port + 1)


async def test_a_name_that_stays_is_cut_where_its_address_goes(proxy: Proxy) -> None:
    port = proxy.server[1]
    proxy.egress.allow([("localhost", port), ("127.0.0.1", port)])
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(f"CONNECT localhost:{port} HTTP/1.1\r\n\r\nGET /hold HTTP/1.0\r\n\r\n".encode())
    await reader.readuntil(b"GET /hold HTTP/1.0")
    proxy.egress.allow([("localhost", port), ("127.0.0.1", port), ("other.example", 1)])  # this changes nothing for it
    await asyncio.sleep(0.05)
    assert not reader.at_eof()
    proxy.egress.allow([("localhost", port), ("*", port)])
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_what_cannot_be_reached_is_no_refusal(proxy: Proxy) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # nobody else's port, and it refuses
        port = silent.getsockname()[1]
        proxy.egress.allow([("127.0.0.1", port), ("no-such-host.invalid", 80)])
        for target in (f"127.0.0.1:{port}", "no-such-host.invalid:80"):
            assert (await proxy.ask(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())).startswith(b"HTTP/1.1 502 ")
    assert proxy.refusals == []


async def test_heads_and_connections_have_limits(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await proxy.ask(b"GET http://a/" + b"x" * 40_000)).startswith(b"HTTP/1.1 400 ")
    monkeypatch.setattr(egress, "_HEAD_SECONDS", 0.1)
    assert (await proxy.ask(b"GET http://a/")).startswith(b"HTTP/1.1 502 ")
    monkeypatch.setattr(egress, "_CONNECTIONS", 0)
    await proxy.refused(b"CONNECT a:1 HTTP/1.1\r\n\r\n", "more than 0 connections")


async def test_close_cuts_all(proxy: Proxy) -> None:
    proxy.egress.allow([egress_rules.parse(proxy.target)])
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(f"CONNECT {proxy.target} HTTP/1.1\r\n\r\nGET /hold HTTP/1.0\r\n\r\n".encode())
    await reader.readuntil(b"GET /hold HTTP/1.0")
    await proxy.egress.close()
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(*proxy.address)
