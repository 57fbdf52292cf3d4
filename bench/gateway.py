"""How fast the gateway is, as ratios against a bare relay of the same server library, measured in the same run.

Processes: load ─► gateway ─► fake engine; load ─► relay ─► fake engine; load ─► fake engine. Prompts have about 4,096 tokens
and answers 200 sampled tokens with logprobs; each request goes on from its rollout's last call, as harnesses do, except the
first of a rollout ("cold"), which shares only system prompt and tools with others. The engine writes 8 tokens at a time.

To measure a peer's gateway the same way: `--engine-only` starts a fake engine and prints its address; start the peer with that
as its upstream; `--peer PORT --engine PORT` then measures the peer beside a relay to the same engine, in one run.

The last line is JSON; see `KEYS`. `relay_ratio_N` is the smaller of streamed and whole at N connections.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gateway_parts.conversations import Shape
from gateway_parts.load import PassResult
from gateway_parts.processes import BENCH, Bench, Elsewhere

KEYS = (
    "relay_ratio_1",
    "relay_ratio_32",
    "relay_ratio_256",
    "relay_ratio_32_cold",
    "two_worker_gain",
    "sessions_held",
    "sessions_lost",
    "health_p99_ms",
    "added_ttft_p50_ms",
    "rollout60_stored_bytes",
    "resident_bytes_per_call",
    "build_1m_tokens_s",
    "build_growth_4x",
)


def rate(results: list[PassResult]) -> float:
    """Calls per second; a failed call ends the benchmark, since it would make things look fast."""
    failed = sum(result.failed for result in results)
    if failed:
        raise SystemExit(f"{failed} calls failed; see the servers' logs")
    return sum(result.answered for result in results) / sum(result.seconds for result in results)


# --- the measurements --------------------------------------------------------------------------------------------------------


def throughput(bench: Bench, rounds: int, scale: float) -> dict[str, float]:
    """Calls/s through the gateway over calls/s through the relay; warm and cold, streamed and whole."""
    found: dict[str, float] = {}
    for connections, usual in ((1, 6), (32, 64), (256, 256)):
        rollouts = max(connections, round(usual * scale))
        for stream in (False, True):
            got: dict[str, list[float]] = {"direct": [], "relay": [], "warm": [], "cold": []}
            for _ in range(rounds):
                with bench.engine() as engine:
                    plain = bench.passes(engine, connections, rollouts, Shape(), stream=stream, keys=False)
                    with bench.relay(engine) as relay:
                        relayed = bench.passes(relay, connections, rollouts, Shape(), stream=stream, keys=False)
                    with bench.gateway(engine, rollouts) as gateway:
                        ours = bench.passes(gateway, connections, rollouts, Shape(), stream=stream, keys=True)
                got["direct"].append(rate(plain[1:]))
                got["relay"].append(rate(relayed[1:]))
                got["warm"].append(rate(ours[1:]))
                got["cold"].append(rate(ours[:1]))
            middle = {name: statistics.median(values) for name, values in got.items()}
            kind = "streamed" if stream else "whole"
            print(
                f"{connections:4d} connections, {kind:8s}: direct {middle['direct']:7.0f}/s  relay {middle['relay']:7.0f}/s  "
                f"gateway {middle['warm']:6.0f}/s = {middle['warm'] / middle['relay']:.2f} of the relay  "
                f"(cold prompts {middle['cold']:6.0f}/s = {middle['cold'] / middle['relay']:.2f})",
                flush=True,
            )
            for name, part in ((f"relay_ratio_{connections}", "warm"), (f"relay_ratio_{connections}_cold", "cold")):
                found[name] = min(found.get(name, 9e9), middle[part] / middle["relay"])
    return {name: round(value, 3) for name, value in found.items() if name in KEYS}


def second_worker(bench: Bench, rounds: int, scale: float) -> dict[str, float]:
    """Calls/s with two workers over calls/s with one, at 32 connections."""
    rollouts = max(32, round(64 * scale))
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers in (1, 2):
            with bench.engine() as engine, bench.gateway(engine, rollouts, workers) as gateway:
                rates[workers].append(rate(bench.passes(gateway, 32, rollouts, Shape(), stream=False, keys=True)[1:]))
    gain = statistics.median(rates[2]) / statistics.median(rates[1])
    print(f"second worker: {gain:.2f} times the calls/s of one ({os.cpu_count()} cores serve engine, load and gateway)")
    return {"two_worker_gain": round(gain, 3)}


def many_sessions(bench: Bench, sessions: int) -> dict[str, float]:
    """So many rollouts at once, each waiting ten seconds for its engine; /healthz is asked all the while."""
    shape = Shape(calls=1)
    with bench.engine(first=10.0, group=50) as engine, bench.gateway(engine, sessions) as gateway:
        before = gateway.resident()
        probe = subprocess.Popen(
            [sys.executable, "-m", "gateway_parts.health", str(gateway.port)],
            cwd=BENCH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        result = bench.passes(gateway, sessions, sessions, shape, stream=False, keys=True)[0]
        times = sorted(json.loads(probe.communicate()[0]))
        grown = gateway.resident() - before
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    print(
        f"{sessions} sessions with a 10 s engine: {result.answered} answered, {result.failed} lost, in {result.seconds:.0f} s; "
        f"health p50 {statistics.median(times):.1f} ms, p99 {p99:.1f} ms, max {times[-1]:.0f} ms; "
        f"{grown / sessions / 1024:.0f} KiB resident per session",
        flush=True,
    )
    return {"sessions_held": result.answered, "sessions_lost": result.failed, "health_p99_ms": round(p99, 2)}


def first_token(bench: Bench, scale: float) -> dict[str, float]:
    """Milliseconds that the gateway adds to the time to the first token, at 32 connections and 10 ms per token.

    The connections ask one after another, not in step, as harnesses do.
    """
    rollouts = max(32, round(32 * scale))
    with bench.engine(first=0.05, token=0.01, group=1) as engine:
        plain = bench.passes(engine, 32, rollouts, Shape(calls=4), stream=True, keys=False, spread=2.0)
        with bench.gateway(engine, rollouts) as gateway:
            ours = bench.passes(gateway, 32, rollouts, Shape(calls=4), stream=True, keys=True, spread=2.0)
    medians = [statistics.median(ms for result in results[1:] for ms in result.first_ms) for results in (plain, ours)]
    print(f"first token at 32 connections: direct p50 {medians[0]:.1f} ms, gateway p50 {medians[1]:.1f} ms", flush=True)
    return {"added_ttft_p50_ms": round(medians[1] - medians[0], 2)}


def long_rollout(bench: Bench, rollouts: int = 4) -> dict[str, float]:
    """Bytes stored and resident for 60-turn rollouts that grow from 4k to 52k tokens."""
    shape = Shape(first=4000, output=600, calls=60)
    with bench.engine() as engine, bench.gateway(engine, rollouts) as gateway:
        bench.passes(gateway, rollouts, rollouts, Shape(calls=1), stream=False, keys=True)  # what the first call loads
        before = gateway.resident()
        directory = bench.run_directory / "store"
        empty = _bytes(directory)
        rate(bench.passes(gateway, rollouts, rollouts, shape, stream=False, keys=True))
        grown = gateway.resident() - before
        gateway.stop()
        stored = (_bytes(directory) - empty) / rollouts
    per_call = max(0, grown) / rollouts / shape.calls
    print(f"60 turns, 4k to 52k tokens: {stored / 1e6:.2f} MB stored, {per_call / 1e3:.1f} kB resident per call", flush=True)
    return {"rollout60_stored_bytes": round(stored), "resident_bytes_per_call": round(per_call)}


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file() and not path.name.endswith("-shm"))


def peer(bench: Bench, port: int, engine_port: int, rounds: int) -> dict[str, float]:
    """Another gateway's calls/s over a relay's, both to an engine that runs already; it is sent no key of ours."""
    found: dict[str, float] = {}
    upstream, other = Elsewhere(engine_port), Elsewhere(port)
    for connections in (1, 32, 256):
        for stream in (False, True):
            ratios = []
            for _ in range(rounds):
                with bench.relay(upstream) as relay:
                    ask = {"connections": connections, "rollouts": max(connections, 64), "shape": Shape(), "stream": stream}
                    relayed = rate(bench.passes(relay, **ask, keys=False)[1:])
                ratios.append(rate(bench.passes(other, **ask, keys=False)[1:]) / relayed)
            kind = "streamed" if stream else "whole"
            print(f"peer, {connections:4d} connections, {kind:8s}: {statistics.median(ratios):.2f} of the relay", flush=True)
            name = f"relay_ratio_{connections}"
            found[name] = round(min(found.get(name, 9e9), statistics.median(ratios)), 3)
    return found


def building() -> dict[str, float]:
    """Seconds to build the samples of a large trace, and how they grow."""
    from trace_building import measure

    result = measure()
    print(
        f"samples of 1,000 calls, 1M tokens, 20 sub-agents: {result.build_1m_tokens_s:.3f} s; "
        f"2x {result.build_growth_2x:.2f}, 4x {result.build_growth_4x:.2f} times that",
        flush=True,
    )
    return {"build_1m_tokens_s": round(result.build_1m_tokens_s, 3), "build_growth_4x": round(result.build_growth_4x, 2)}


def main() -> None:
    """Measure everything and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds per figure; medians are printed")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of rollouts")
    parser.add_argument("--sessions", type=int, default=5000, help="sessions held at once")
    parser.add_argument("--engine-only", action="store_true", help="start a fake engine, print its port, wait for Ctrl-C")
    parser.add_argument("--peer", type=int, default=0, help="port of another gateway, to measure that one only")
    parser.add_argument("--engine", type=int, default=0, help="port of the fake engine that the peer uses")
    parser.add_argument("--only", default="", help="comma-separated: throughput,workers,sessions,first,storage,building")
    arguments = parser.parse_args()
    wanted = set(filter(None, arguments.only.split(",")))
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}", flush=True
    )
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="whippletree-bench-") as directory:
        bench = Bench(Path(directory))
        if arguments.engine_only:
            with bench.engine() as engine:
                print(f"the fake engine is at http://127.0.0.1:{engine.port}/v1", flush=True)
                engine.process.wait()
            return
        if arguments.peer:
            found = peer(bench, arguments.peer, arguments.engine, arguments.rounds)
            print(json.dumps({"bench": "gateway-peer", **found}))
            return
        parts = {
            "throughput": lambda: throughput(bench, arguments.rounds, arguments.scale),
            "workers": lambda: second_worker(bench, arguments.rounds, arguments.scale),
            "sessions": lambda: many_sessions(bench, arguments.sessions),
            "first": lambda: first_token(bench, arguments.scale),
            "storage": lambda: long_rollout(bench),
            "building": building,
        }
        for name, part in parts.items():
            if not wanted or name in wanted:
                found |= part()
    print(json.dumps({"bench": "gateway", **{key: found[key] for key in KEYS if key in found}}))


if __name__ == "__main__":
    main()
