"""What to do, from what is wanted and what is observed: a pure function over plain values.

    wanted: attempts that the store has as running, by their stage here          observed: Jobs, as the mirror has them
      new ──Create──► placing ──acknowledged──► placed ──End | Expire | Lose──► ending ──recorded──► (no longer wanted)
    A Job whose attempt is not wanted gets Remove.

A decision depends on the levels alone, so it does not matter which events led there: a missed one is made up by the next list,
a repeated one changes nothing.

Invariants (tests/control/kubernetes/test_kubernetes_decide.py):
- every interleaving of missed, repeated and reordered events, failures of the controller and foreign Jobs ends in one state:
  every rollout ended once, no Job of ours left, nothing of others touched;
- an attempt gets at most one Job, ever: only an attempt that this process claimed itself is created, and only once;
- a Job that an older list does not have yet is not taken for lost;
- time that a Job waits for a machine or an image does not count as running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from whippletree.types import Struct

Stage = Literal["new", "placing", "placed", "ending"]
JobState = Literal["active", "succeeded", "failed"]


class Owner(Struct):
    """Whose Jobs are ours: one controller of one run. Example: Owner(run="3f9a1c20be", controller="local")"""

    run: str
    controller: str


class Wanted(Struct):
    """A running attempt of this controller. Limits are seconds.

    `uid`: of its Job, once known ("" before). `known_at`: number of the newest list begun when its create was acknowledged;
    `seen`: the mirror has had its Job.

    Example: Wanted(rollout_id="s0-g0-m1", attempt=1, job="wt-3f9a1c20be-s0-g0-m1-1b2c3d4e-1", stage="new",
                    pending_seconds=900.0, running_seconds=3600.0)
    """

    rollout_id: str
    attempt: int
    job: str
    stage: Stage
    pending_seconds: float
    running_seconds: float
    uid: str = ""
    pod: str = ""
    known_at: int = 0
    seen: bool = False


class Observed(Struct):
    """A Job with what its pods say. Times are seconds since the epoch; 0 means not yet.

    `deleting`: the API server is removing it. `pods`: uids of its pods, oldest first. `waiting`: why no container runs yet.

    Example: Observed(name="wt-...-1", uid="9f...", owner=Owner(...), state="active", created=1.0)
    """

    name: str
    uid: str
    owner: Owner
    state: JobState
    created: float
    started: float = 0.0
    deleting: bool = False
    pods: tuple[str, ...] = ()
    waiting: str = ""


class Create(Struct):
    """Create the attempt's Job. Example: Create(rollout_id="s0-g0-m1", attempt=1)"""

    rollout_id: str
    attempt: int


class End(Struct):
    """The attempt's Job has ended: read its outcome. Example: End(rollout_id="s0-g0-m1", attempt=1, uid="9f...")"""

    rollout_id: str
    attempt: int
    uid: str


class Expire(Struct):
    """The attempt's Job must not go on. `why`: what it overran, or "replaced" for a pod that is not the first one.

    Example: Expire(rollout_id="s0-g0-m1", attempt=1, uid="9f...", why="pending", waiting="Unschedulable: 0/3 nodes")
    """

    rollout_id: str
    attempt: int
    uid: str
    why: Literal["pending", "running", "replaced"]
    waiting: str = ""


class Lose(Struct):
    """The attempt's Job is gone, and nobody knows how it ended. Example: Lose(rollout_id="s0-g0-m1", attempt=1)"""

    rollout_id: str
    attempt: int


class Remove(Struct):
    """Delete this very Job; it has no running attempt. Example: Remove(name="wt-...-1", uid="9f...")"""

    name: str
    uid: str


Action = Create | End | Expire | Lose | Remove


def decide(desired: Sequence[Wanted], observed: Sequence[Observed], *, owner: Owner, listed: int, now: float) -> list[Action]:
    """The actions that bring the cluster to what is desired. `listed`: number of the newest list that `observed` contains."""
    ours = {job.name: job for job in observed if job.owner == owner}
    actions: list[Action] = []
    kept: set[str] = set()
    for wanted in desired:
        job = ours.get(wanted.job)
        if job is not None and wanted.uid in ("", job.uid):
            kept.add(job.uid)
        else:
            job = None
        if wanted.stage == "new":
            actions.append(Create(rollout_id=wanted.rollout_id, attempt=wanted.attempt))
        elif wanted.stage == "placed":
            action = _gone(wanted, listed) if job is None else _follow(wanted, job, now)
            actions += [action] if action else []
    actions += [Remove(name=job.name, uid=job.uid) for job in ours.values() if job.uid not in kept and not job.deleting]
    return actions


def _gone(wanted: Wanted, listed: int) -> Action | None:
    """Absent is lost only if it was there before, or if the list was begun after its create was acknowledged."""
    lost = wanted.seen or listed > wanted.known_at
    return Lose(rollout_id=wanted.rollout_id, attempt=wanted.attempt) if lost else None


def _follow(wanted: Wanted, job: Observed, now: float) -> Action | None:
    if job.state != "active":
        return End(rollout_id=wanted.rollout_id, attempt=wanted.attempt, uid=job.uid)
    why: Literal["pending", "running", "replaced"]
    if len(job.pods) > 1 or (wanted.pod and job.pods and wanted.pod not in job.pods):
        why = "replaced"
    elif job.started and now - job.started > wanted.running_seconds:
        why = "running"
    elif not job.started and now - job.created > wanted.pending_seconds:
        why = "pending"
    else:
        return None
    return Expire(rollout_id=wanted.rollout_id, attempt=wanted.attempt, uid=job.uid, why=why, waiting=job.waiting)
