"""What a task asks for that is not run here, or that cannot be meant: found at load, never while an attempt runs. Pure.

Invariants (tests/tasks/test_read_task.py): each refusal names file and key; nothing that is refused is also in the notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from whippletree.tasks.format import (
    AgentTable,
    ArtifactTable,
    EnvironmentTable,
    HealthcheckTable,
    TaskFile,
    VerifierTable,
)
from whippletree.tasks.images import HOSTS, Backing
from whippletree.tasks.keys import Problem

_SECONDS = "give a positive number of seconds"
_ONE_SERVICE = 'there is one service, "main": leave the key out'


def refusals(settings: TaskFile, origin: str, backing: Backing = HOSTS) -> Iterator[Problem]:
    """Every refusal of a task.toml. `origin`: the file; `backing`: what its sandboxes can be."""

    def found(key: str, value: object, next_step: str) -> Problem:
        return Problem(f"{origin}: {key} = {value}", next_step)

    for key, value, next_step in (*_task(settings), *_images(settings, backing)):
        yield found(key, value, next_step)


_Found = Iterator[tuple[str, object, str]]


def _task(settings: TaskFile) -> _Found:
    yield from _environment(settings.environment, "environment")
    yield from _agent(settings.agent, "agent")
    yield from _verifier(settings.verifier, "verifier", None)
    yield from _services(settings.artifacts, "artifacts")
    for number, step in enumerate(settings.steps or []):
        prefix = f"steps.{number}"
        yield from _agent(step.agent, f"{prefix}.agent")
        yield from _verifier(step.verifier, f"{prefix}.verifier", settings.verifier)
        yield from _healthcheck(step.healthcheck, f"{prefix}.healthcheck")
        yield from _services(step.artifacts, f"{prefix}.artifacts")
    if settings.multi_step_reward_strategy and not settings.steps:
        strategy = settings.multi_step_reward_strategy
        yield "multi_step_reward_strategy", strategy, "leave it out: this task has no steps"


def _environments(settings: TaskFile) -> Iterator[tuple[str, EnvironmentTable]]:
    yield "environment", settings.environment
    steps = ((f"steps.{number}.verifier", step.verifier) for number, step in enumerate(settings.steps or []))
    for key, table in (("verifier", settings.verifier), *steps):
        if table.environment is not None:
            yield f"{key}.environment", table.environment


def _images(settings: TaskFile, backing: Backing) -> _Found:
    if backing.images == "never":
        for key, table in _environments(settings):
            if table.docker_image:
                yield f"{key}.docker_image", table.docker_image, backing.refusal


def _environment(table: EnvironmentTable, key: str) -> _Found:
    for name in ("build_timeout_sec", "cpus"):
        value = getattr(table, name)
        if value is not None and not 0.0 < value < float("inf"):
            yield f"{key}.{name}", value, "give a positive number"
    if table.storage_mb is not None and table.storage_mb < 1:
        yield f"{key}.storage_mb", table.storage_mb, "give at least 1"
    if table.os.lower() != "linux":
        yield f"{key}.os", table.os, "only Linux is run here"
    if table.gpus:
        yield f"{key}.gpus", table.gpus, "no backend here gives a sandbox a GPU"
    if table.gpu_types:
        yield f"{key}.gpu_types", table.gpu_types, "no backend here gives a sandbox a GPU"
    if table.tpu is not None:
        yield f"{key}.tpu", table.tpu.type, "no backend here gives a sandbox a TPU"
    if table.mcp_servers:
        names = ", ".join(server.name for server in table.mcp_servers)
        yield f"{key}.mcp_servers", names, "MCP servers are not started here"
    if table.skills_dir:
        yield f"{key}.skills_dir", table.skills_dir, "skills are not handed to agents here: put them into the instruction"
    yield from _network(table, key)
    yield from _healthcheck(table.healthcheck, f"{key}.healthcheck")


def _agent(table: AgentTable, key: str) -> _Found:
    yield from _seconds(table.timeout_sec, f"{key}.timeout_sec")
    yield from _network(table, key)


def _verifier(table: VerifierTable, key: str, above: VerifierTable | None) -> _Found:
    yield from _seconds(table.timeout_sec, f"{key}.timeout_sec")
    yield from _network(table, key)
    if table.environment is not None:
        yield from _environment(table.environment, f"{key}.environment")
        mode = table.environment_mode or (above.environment_mode if above else None)
        if mode == "shared":
            yield f"{key}.environment_mode", mode, f"leave [{key}.environment] out, or make it separate"
    for number, hook in enumerate(table.collect):
        yield from _seconds(hook.timeout_sec, f"{key}.collect.{number}.timeout_sec")
        if hook.service != "main":
            yield f"{key}.collect.{number}.service", hook.service, _ONE_SERVICE


def _services(entries: list[str | ArtifactTable], key: str) -> _Found:
    for number, entry in enumerate(entries):
        if isinstance(entry, ArtifactTable) and entry.service not in (None, "main"):
            yield f"{key}.{number}.service", entry.service, _ONE_SERVICE


def _seconds(value: float | None, key: str) -> _Found:
    if value is not None and not 0.0 < value < float("inf"):
        yield key, value, _SECONDS


def _healthcheck(table: HealthcheckTable | None, key: str) -> _Found:
    if table is None:
        return
    for name in ("interval_sec", "timeout_sec", "start_interval_sec"):
        yield from _seconds(getattr(table, name), f"{key}.{name}")
    if not 0.0 <= table.start_period_sec < float("inf"):
        yield f"{key}.start_period_sec", table.start_period_sec, "give a number of seconds, or 0"
    if table.retries < 1:
        yield f"{key}.retries", table.retries, "give at least 1"


def _network(table: AgentTable | VerifierTable | EnvironmentTable, key: str) -> _Found:
    if table.network_mode == "allowlist" and not table.allowed_hosts:
        yield f"{key}.network_mode", "allowlist", "name the hosts in allowed_hosts"
    if table.network_mode != "allowlist" and table.allowed_hosts:
        yield f"{key}.allowed_hosts", table.allowed_hosts, 'set network_mode = "allowlist"'


def notes(settings: TaskFile, backing: Backing = HOSTS) -> Iterator[str]:
    """What is recorded and has no effect, where the task says it in so many words. `backing`: what its sandboxes can be."""
    for key, box in _environments(settings):
        for name in ("storage_mb", "storage"):
            if getattr(box, name) is not None and not backing.sized:
                yield f"{key}.{name} = {getattr(box, name)}: recorded; a {backing.kind} sandbox has no file system of its own"
    if settings.multi_step_reward_mode is not None:
        yield f"multi_step_reward_mode = {settings.multi_step_reward_mode}: recorded; write multi_step_reward_strategy"
