"""The two ends of an attempt's life in the cluster: its Job is placed, and its end is recorded.

    place:  load the task ─► render ─► create the Job ─► create the Secret with its key, owned by the Job
    record: seal ─► judge ─► capture logs ─► (pause before another try) ─► finish in the store; its Job is an orphan then
    Both may be cut off anywhere by a kill, and are done again from the start: every step is idempotent.

Invariants (tests/control/kubernetes/test_kubernetes_reconciler.py):
- the key is in the Secret alone: in no Job, record, log or captured output;
- no call of an attempt is accepted once its end is being recorded;
- the record of an attempt names its Job, its phases and one reward or one cause, unless rubrics are still to give the reward;
  output is captured before the Job is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree.control.attempt import Sealer
from whippletree.control.config import ControlConfig, DeadlineConfig, HarnessBinding, reward_rule
from whippletree.control.kubernetes.config import KubernetesConfig
from whippletree.control.kubernetes.decide import Owner
from whippletree.control.kubernetes.labels import ATTEMPT, ROLLOUT, job_name, owner_of
from whippletree.control.kubernetes.objects import Job
from whippletree.control.kubernetes.outcome import JobEnd, paid, phases
from whippletree.control.kubernetes.template import JobLimits, JobTemplate, JobVariables, key_secret, own
from whippletree.control.launch import HIDDEN
from whippletree.control.place import attempt_directory
from whippletree.control.policy import judge
from whippletree.errors import ClusterError, ConfigurationError, TaskError
from whippletree.files import write_atomically
from whippletree.gateway.keys import mint
from whippletree.kubernetes.client import BUSY, JOBS, PODS, SECRETS, Cluster, backoff
from whippletree.kubernetes.objects import Manifest, Named, Pod
from whippletree.protocols import Store
from whippletree.tasks import load_task
from whippletree.types import Attempt, Cause, CauseClass, Event, Phase, RolloutSpec, VerifierResult

log = logging.getLogger(__name__)

LOG_SECONDS = 20.0  # limit for capturing the output of one container
QUOTA = "exceeded quota"
REFUSED = (400, 403, 404, 422)  # what the API server answers to a Job that it will never take


@dataclass(frozen=True, kw_only=True)
class ClusterParts:
    """What all attempts of one reconciler share. `gateway_url` is the gateway's root as pods reach it."""

    store: Store
    sealer: Sealer
    cluster: Cluster
    owner: Owner
    template: JobTemplate
    bindings: Sequence[HarnessBinding]
    control: ControlConfig
    secret: bytes
    gateway_url: str
    model: str
    directory: Path

    @property
    def deadlines(self) -> DeadlineConfig:
        """The limits of an attempt's phases."""
        return self.control.deadlines

    @property
    def config(self) -> KubernetesConfig:
        """The cluster's settings."""
        return self.control.kubernetes


class ClusterAttempt:
    """One attempt that is, or is to be, a Job."""

    def __init__(self, parts: ClusterParts, spec: RolloutSpec, attempt: Attempt) -> None:
        self.parts = parts
        self.spec = spec
        self.attempt = attempt
        self.job = job_name(parts.owner.run, spec.rollout_id, attempt.attempt)
        self._key = mint(parts.secret, spec.rollout_id, attempt.attempt)

    # --- the beginning -------------------------------------------------------------------------------------------------

    async def place(self) -> str | Cause:
        """Create its Job and Secret; the Job's uid, or why there cannot be one."""
        try:
            manifest = await self._manifest()
            uid = await self._create(manifest)
            await self.give_key(manifest, uid)
        except TaskError as error:
            return self._cannot(CauseClass.TASK, error.cause, error.next_step)
        except ConfigurationError as error:
            return self._cannot(CauseClass.CONFIGURATION, error.cause, error.next_step)
        except ClusterError as error:
            over_quota = QUOTA in error.cause
            kind = CauseClass.CONFIGURATION if error.status in REFUSED and not over_quota else CauseClass.SANDBOX
            return self._cannot(CauseClass.DEADLINE if over_quota else kind, error.cause, error.next_step)
        return uid

    async def _manifest(self) -> Manifest:
        parts = self.parts
        variables = await asyncio.to_thread(self._variables)
        job = parts.template.render(variables)
        return own(
            job,
            parts.config,
            parts.owner,
            rollout_id=self.spec.rollout_id,
            attempt=self.attempt.attempt,
            origin=parts.template.origin,
        )

    def _variables(self) -> JobVariables:
        parts, spec = self.parts, self.spec
        task = load_task(Path(spec.task_path), parts.control.variables)
        if len(task.steps) > 1 or task.steps[0].judging.separate is not None:
            raise TaskError(
                f"{task.path}: a Job has one step and one machine, and the task asks for more", "run it with another launch"
            )
        (step,) = task.steps
        return JobVariables(
            rollout_id=spec.rollout_id,
            attempt=self.attempt.attempt,
            name=self.job,
            base_url=f"{parts.gateway_url}/v1",
            gateway_url=parts.gateway_url,
            model=parts.model,
            source=spec.source,
            harness=spec.harness,
            task_id=spec.task_id,
            task_path=spec.task_path,
            instruction=step.instruction,
            image=parts.config.image or task.place.base_image,
            workdir=task.workdir,
            limits=JobLimits(
                agent_seconds=min(parts.deadlines.agent, step.agent_timeout),
                verify_seconds=min(parts.deadlines.verify, step.judging.timeout),
                running_seconds=parts.config.running_seconds,
                memory_mb=task.place.memory_mb,
            ),
            settings=_binding(parts.bindings, spec).of(spec),
            labels=spec.labels,
            environment=task.place.environment,
        )

    async def _create(self, manifest: Manifest) -> str:
        """Its uid. A full quota, or an API server that does not answer, is waited for as long as for a machine."""
        until = time.monotonic() + self.parts.config.pending_seconds
        tries = 0
        while True:
            try:
                return (await self.parts.cluster.create(JOBS, manifest)).metadata.uid
            except ClusterError as error:
                tries += 1
                if error.reason == "AlreadyExists":
                    return await self._found()
                if not _passes(error) or time.monotonic() > until:
                    raise
            await asyncio.sleep(backoff(tries, 0.0, 0.5))

    async def _found(self) -> str:
        """The uid of the Job that is there, if an earlier try of ours made it."""
        meta = (await self.parts.cluster.read(JOBS, self.job, Named)).metadata
        said = meta.annotations or {}
        ours = owner_of(meta.labels or {}) == self.parts.owner
        if not ours or (said.get(ROLLOUT), said.get(ATTEMPT)) != (self.spec.rollout_id, str(self.attempt.attempt)):
            raise ConfigurationError(f"a Job {self.job} of somebody else is there", "remove it, or use another namespace")
        return meta.uid

    async def give_key(self, manifest: Manifest | None, uid: str) -> None:
        """Create its Secret unless it is there. Raises ClusterError. `manifest`: of the Job, None for one that was adopted."""
        job = manifest or {"metadata": {"name": self.job, "labels": (await self._labels())}}
        try:
            await self.parts.cluster.create(SECRETS, key_secret(job, uid, self._key))
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _labels(self) -> dict[str, str]:
        return (await self.parts.cluster.read(JOBS, self.job, Named)).metadata.labels or {}

    def _cannot(self, kind: CauseClass, message: str, next_step: str) -> Cause:
        return Cause(cause=kind, phase="boot", message=message.replace(self._key, HIDDEN)[:2000], next_step=next_step)

    # --- the end -------------------------------------------------------------------------------------------------------

    async def pods(self, uid: str) -> list[Pod]:
        """Its pods as they are now, not as a watch may still have them."""
        found, _ = await self.parts.cluster.list_all(PODS, Pod, f"job-name={self.job}")
        return [pod for pod in found if pod.job_uid == uid]

    async def close(self, end: JobEnd, job: Job | None, pods: Sequence[Pod]) -> Attempt:
        """Seal, judge, capture output: the attempt with its end, for the store."""
        spec, attempt = self.spec, self.attempt
        crashed = end.agent.result.crashed
        report = await self.parts.sealer.seal(spec.rollout_id, attempt.attempt, self.parts.deadlines.seal, crashed=crashed)
        calls = await asyncio.to_thread(self.parts.store.calls, spec.rollout_id, attempt.attempt)
        cause = judge(end.agent, report, calls)
        result = self._paid(end.result) if cause is None and end.result is not None else None
        if cause is None and (result is None or (result.reward is None and not result.pending)):
            cause = result.cause if result else None
            cause = cause or Cause(
                cause=CauseClass.VERIFIER, phase="verify", message="no result", next_step="mend the verifier"
            )
        await self._capture(pods)
        times = phases(job, pods, time.time()) if job else ()
        await self._tell(times)
        return self.ended(cause, result, times, end.agent.result.exit_status)

    def _paid(self, result: VerifierResult) -> VerifierResult:
        control = self.parts.control
        try:
            rule = reward_rule(_binding(self.parts.bindings, self.spec).reward, control.reward)
        except ConfigurationError as error:  # it was adopted, and the run's file is another one now
            return VerifierResult(reward=None, cause=self._cannot(CauseClass.CONFIGURATION, error.cause, error.next_step))
        return paid(result, rule, control.rubrics_of(self.spec.source))

    def ended(
        self, cause: Cause | None, result: VerifierResult | None = None, times: tuple[Phase, ...] = (), exit_status: str = ""
    ) -> Attempt:
        """The attempt as it is recorded, without its key."""
        if cause is not None:
            cause = msgspec.structs.replace(cause, message=cause.message.replace(self._key, HIDDEN))
        if result is not None:
            result = msgspec.structs.replace(result, output=result.output.replace(self._key, HIDDEN))
        return msgspec.structs.replace(
            self.attempt,
            finished=time.time(),
            phases=times,
            result=result,
            cause=cause,
            exit_status=exit_status,
            sealed=True,
            sandbox=f"kubernetes:{self.parts.config.namespace}/{self.job}",
        )

    async def _capture(self, pods: Sequence[Pod]) -> None:
        """Keep the end of every container's output beside the run. Output that cannot be had costs no reward."""
        config = self.parts.config
        directory = attempt_directory(self.parts.directory, self.spec.rollout_id, self.attempt.attempt)
        for pod in pods:
            for container in (container for container in pod.containers if container.started):
                name = re.sub(r"[^A-Za-z0-9-]", "-", container.name)
                try:
                    async with asyncio.timeout(LOG_SECONDS):
                        output = await self.parts.cluster.log(
                            pod.metadata.name, container.name, lines=config.log_lines, kilobytes=config.log_kb
                        )
                except (ClusterError, TimeoutError) as error:
                    log.warning("%s: the output of container %s was not captured: %s", self.job, container.name, error)
                    continue
                await asyncio.to_thread(write_atomically, directory / f"{name}.log", self._hide(output))

    def _hide(self, output: bytes) -> bytes:
        """Without the key; where the output's beginning was cut off, without the part of a key that may begin it."""
        key = self._key.encode()
        cut = len(output) >= self.parts.config.log_kb * 1024
        return output.replace(key, HIDDEN.encode())[len(key) if cut else 0 :]

    async def _tell(self, times: Sequence[Phase]) -> None:
        events = [
            Event(
                event_id=f"{self.spec.rollout_id}-{self.attempt.attempt}-{phase.name}",
                rollout_id=self.spec.rollout_id,
                attempt=self.attempt.attempt,
                time=phase.started + phase.seconds,
                kind="phase",
                data={"name": phase.name, "seconds": round(phase.seconds, 6)},
            )
            for phase in times
        ]
        if events:
            await asyncio.wrap_future(self.parts.store.append_events(events))


def _passes(error: ClusterError) -> bool:
    """Whether what keeps a Job from being created is not about the Job."""
    return QUOTA in error.cause or error.status == 0 or error.status in BUSY


def _binding(bindings: Sequence[HarnessBinding], spec: RolloutSpec) -> HarnessBinding:
    """The harness as this rollout's source has it. Raises ConfigurationError when nothing binds it."""
    by_name = {(binding.source, binding.harness): binding for binding in bindings}
    binding = by_name.get((spec.source, spec.harness)) or by_name.get(("", spec.harness))
    if binding is None:
        raise ConfigurationError(
            f"rollout {spec.rollout_id}: source {spec.source!r} has no harness {spec.harness!r}",
            "name it in the run file's sources",
        )
    return binding
