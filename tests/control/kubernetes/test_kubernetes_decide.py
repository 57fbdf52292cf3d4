"""The decision as a pure function, driven through every order of events by a small world of plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from whippletree.control.kubernetes.decide import Create, End, Expire, Lose, Observed, Owner, Remove, Wanted, decide

OURS = Owner(run="r", controller="c")
MAX_ATTEMPTS = 3
PENDING, RUNNING = 10.0, 100.0


def wanted(**changes: object) -> Wanted:
    made = Wanted(rollout_id="a", attempt=1, job="a-1", stage="placed", pending_seconds=PENDING, running_seconds=RUNNING)
    return msgspec.structs.replace(made, **changes)


def job(**changes: object) -> Observed:
    return msgspec.structs.replace(Observed(name="a-1", uid="u", owner=OURS, state="active", created=0.0), **changes)


def plan(desired: list[Wanted], observed: list[Observed], *, listed: int = 1, now: float = 1.0) -> list:
    return decide(desired, observed, owner=OURS, listed=listed, now=now)


def test_a_new_attempt_is_created():
    assert plan([wanted(stage="new")], []) == [Create(rollout_id="a", attempt=1)]


def test_nothing_is_done_while_a_create_or_an_end_is_under_way():
    for stage in ("placing", "ending"):
        assert plan([wanted(stage=stage)], []) == []
        assert plan([wanted(stage=stage)], [job(state="failed")]) == []


def test_an_ended_job_ends_its_attempt_also_while_it_is_being_deleted():
    end = End(rollout_id="a", attempt=1, uid="u")
    for state in ("succeeded", "failed"):
        assert plan([wanted()], [job(state=state)]) == [end]
        assert plan([wanted()], [job(state=state, deleting=True)]) == [end]


def test_a_job_that_an_older_list_cannot_have_is_not_lost():
    assert plan([wanted(known_at=4)], [], listed=4) == []
    assert plan([wanted(known_at=4)], [], listed=5) == [Lose(rollout_id="a", attempt=1)]
    assert plan([wanted(known_at=4, seen=True)], [], listed=4) == [Lose(rollout_id="a", attempt=1)]


def test_waiting_and_running_have_limits_of_their_own():
    assert plan([wanted()], [job()], now=PENDING) == []
    late = plan([wanted()], [job(waiting="Unschedulable")], now=PENDING + 1)
    assert late == [Expire(rollout_id="a", attempt=1, uid="u", why="pending", waiting="Unschedulable")]
    assert plan([wanted()], [job(started=95.0)], now=95.0 + RUNNING) == []
    assert plan([wanted()], [job(started=95.0)], now=96.0 + RUNNING)[0].why == "running"


def test_a_second_pod_ends_the_attempt():
    for seen in (job(pods=("p", "q")), job(pods=("q",))):
        assert plan([wanted(pod="p")], [seen])[0].why == "replaced"
    assert plan([wanted(pod="p")], [job(pods=("p",))]) == []


def test_a_job_of_the_same_name_that_is_not_the_one_that_was_made_is_removed_and_the_attempt_is_lost():
    assert plan([wanted(uid="u", seen=True)], [job(uid="other")]) == [
        Lose(rollout_id="a", attempt=1),
        Remove(name="a-1", uid="other"),
    ]


@given(st.sampled_from(["active", "succeeded", "failed"]), st.booleans())
def test_an_orphan_is_removed_once_and_others_are_never_touched(state: str, deleting: bool):
    expected = [] if deleting else [Remove(name="a-1", uid="u")]
    assert plan([], [job(state=state, deleting=deleting)]) == expected
    for other in (Owner(run="r", controller="d"), Owner(run="s", controller="c")):
        assert plan([], [job(owner=other, state=state, deleting=deleting)]) == []
        assert plan([wanted(seen=True)], [job(owner=other)]) == [Lose(rollout_id="a", attempt=1)]


# --- a world ---------------------------------------------------------------------------------------------------------------


@dataclass
class Rollout:
    attempt: int = 0
    state: str = "queuing"
    ends: list[tuple[int, str]] = field(default_factory=list)


class Reconciled(RuleBasedStateMachine):
    """A store, a cluster, a mirror that misses, repeats and reorders events, a controller that may be killed at any point."""

    @initialize(count=st.integers(1, 3), foreign=st.integers(0, 2))
    def begin(self, count: int, foreign: int) -> None:
        self.store = {f"r{number}": Rollout() for number in range(count)}
        others = (Owner(run="r", controller="other"), Owner(run="other", controller="c"))
        self.cluster: dict[str, Observed] = {
            f"foreign-{number}": job(name=f"foreign-{number}", uid=f"f{number}", owner=others[number])
            for number in range(foreign)
        }
        self.foreign = dict(self.cluster)
        self.uids = 0
        self.made: list[tuple[str, int]] = []
        self.history: list[tuple[str, Observed]] = []  # everything that the API server has said
        self.requests: list[object] = []  # sent, not yet handled by the API server
        self.restart()

    def restart(self) -> None:
        """A fresh process: it knows the store and makes a first list, nothing else."""
        self.mirror = dict(self.cluster)
        self.lists = 1
        self.wanted = {
            name: wanted(rollout_id=name, attempt=rollout.attempt, job=f"{name}-{rollout.attempt}", stage="placed")
            for name, rollout in self.store.items()
            if rollout.state == "running"
        }
        self.acknowledged: list[tuple[str, int, str]] = []

    # the cluster

    def happen(self, kind: str, value: Observed) -> None:
        if kind == "DELETED":
            self.cluster.pop(value.name, None)
        else:
            self.cluster[value.name] = value
        self.history.append((kind, value))

    @rule(pick=st.randoms(use_true_random=False))
    def a_job_moves_on(self, pick) -> None:
        mine = [seen for seen in self.cluster.values() if seen.owner == OURS and seen.state == "active"]
        if mine:
            one = pick.choice(mine)
            after = pick.choice([{"started": 1.0, "pods": ("p",)}, {"state": "succeeded"}, {"state": "failed"}])
            self.happen("MODIFIED", msgspec.structs.replace(one, **after))

    @rule(pick=st.randoms(use_true_random=False))
    def somebody_deletes_a_job_of_ours(self, pick) -> None:
        mine = [seen for seen in self.cluster.values() if seen.owner == OURS]
        if mine:
            self.happen("DELETED", pick.choice(mine))

    @rule(pick=st.randoms(use_true_random=False), repeat=st.integers(1, 2))
    def the_server_handles_a_request(self, pick, repeat: int) -> None:
        """In any order; a request may be sent again because its answer was lost."""
        if not self.requests:
            return
        request = self.requests.pop(pick.randrange(len(self.requests)))
        for _ in range(repeat):
            self.handle(request)

    def handle(self, request: object) -> None:
        if isinstance(request, Remove):
            found = self.cluster.get(request.name)
            if found is not None and found.uid == request.uid:
                self.happen("DELETED", found)
            return
        assert isinstance(request, Create)
        name = f"{request.rollout_id}-{request.attempt}"
        found = self.cluster.get(name)  # AlreadyExists is success: it is ours
        if found is None:
            self.uids += 1
            self.made.append((request.rollout_id, request.attempt))
            self.happen("ADDED", job(name=name, uid=f"u{self.uids}"))
            found = self.cluster[name]
        self.acknowledged.append((request.rollout_id, request.attempt, found.uid))

    @rule()
    def the_server_is_quick(self) -> None:
        """Every request is handled and answered."""
        while self.requests:
            self.handle(self.requests.pop(0))
        while self.acknowledged:
            self.an_acknowledgement_arrives()

    # what the controller hears

    @rule(pick=st.randoms(use_true_random=False))
    def an_event_is_delivered_late_again_or_out_of_order(self, pick) -> None:
        if self.history:
            kind, value = pick.choice(self.history)
            self.hear(kind, value)

    def hear(self, kind: str, value: Observed) -> None:
        if kind == "DELETED":
            if self.mirror.get(value.name, value).uid == value.uid:
                self.mirror.pop(value.name, None)
        else:
            self.mirror[value.name] = value
        self.note_seen()

    @rule()
    def a_full_list_arrives(self) -> None:
        self.mirror = dict(self.cluster)
        self.lists += 1
        self.note_seen()

    @rule()
    def an_acknowledgement_arrives(self) -> None:
        if self.acknowledged:
            name, attempt, uid = self.acknowledged.pop(0)
            known = self.wanted.get(name)
            if known is not None and known.attempt == attempt and known.stage == "placing":
                changed = msgspec.structs.replace(known, stage="placed", uid=uid, known_at=self.lists)
                self.wanted[name] = changed
                self.note_seen()

    def note_seen(self) -> None:
        for name, known in self.wanted.items():
            found = self.mirror.get(known.job)
            if found is not None and known.uid in ("", found.uid) and known.stage != "new":
                self.wanted[name] = msgspec.structs.replace(known, seen=True, uid=found.uid)

    # what the controller does

    @rule()
    def claim(self) -> None:
        for name, rollout in self.store.items():
            if rollout.state == "queuing":
                rollout.state, rollout.attempt = "running", rollout.attempt + 1
                self.wanted[name] = wanted(
                    rollout_id=name, attempt=rollout.attempt, job=f"{name}-{rollout.attempt}", stage="new"
                )

    @rule(killed_after=st.none() | st.integers(0, 3))
    def reconcile(self, killed_after: int | None) -> None:
        """Carry out decisions; a kill may come between any two."""
        actions = decide(list(self.wanted.values()), list(self.mirror.values()), owner=OURS, listed=self.lists, now=2.0)
        for number, action in enumerate(actions):
            if number == killed_after:
                self.restart()
                return
            self.carry_out(action)

    def carry_out(self, action: object) -> None:
        if isinstance(action, Create):
            self.requests.append(action)
            self.wanted[action.rollout_id] = msgspec.structs.replace(self.wanted[action.rollout_id], stage="placing")
        elif isinstance(action, Remove):
            assert self.mirror[action.name].owner == OURS
            self.requests.append(action)
        elif isinstance(action, End):
            self.finish(action.rollout_id, action.attempt, self.mirror[f"{action.rollout_id}-{action.attempt}"].state)
        elif isinstance(action, Lose | Expire):
            self.finish(action.rollout_id, action.attempt, "lost")

    def finish(self, name: str, attempt: int, how: str) -> None:
        rollout = self.store[name]
        del self.wanted[name]
        if rollout.state != "running" or rollout.attempt != attempt:
            return
        rollout.ends.append((attempt, how))
        again = how != "succeeded" and attempt < MAX_ATTEMPTS
        rollout.state = "queuing" if again else "ended"

    @rule()
    def kill(self) -> None:
        self.restart()

    # what must hold

    @invariant()
    def an_attempt_has_at_most_one_job(self) -> None:
        if hasattr(self, "made"):
            assert len(self.made) == len(set(self.made))

    @invariant()
    def an_attempt_ends_once(self) -> None:
        if hasattr(self, "store"):
            for rollout in self.store.values():
                attempts = [attempt for attempt, _ in rollout.ends]
                assert len(attempts) == len(set(attempts))
                assert [how for _, how in rollout.ends].count("succeeded") <= 1

    @invariant()
    def nothing_of_others_is_touched(self) -> None:
        if hasattr(self, "foreign"):
            assert {name: seen for name, seen in self.cluster.items() if seen.owner != OURS} == self.foreign

    def teardown(self) -> None:
        """It always comes to rest: from any state, a fair continuation ends every rollout and leaves no Job of ours."""
        if not hasattr(self, "store"):
            return
        for _ in range(12 * MAX_ATTEMPTS):
            self.claim()
            while self.requests:
                self.handle(self.requests.pop(0))
            while self.acknowledged:
                self.an_acknowledgement_arrives()
            for seen in list(self.cluster.values()):
                if seen.owner == OURS and seen.state == "active":
                    self.happen("MODIFIED", msgspec.structs.replace(seen, state="succeeded"))
            self.a_full_list_arrives()
            self.reconcile(None)
        assert {rollout.state for rollout in self.store.values()} == {"ended"}
        assert [seen.name for seen in self.cluster.values() if seen.owner == OURS] == []
        assert self.cluster == self.foreign


Reconciled.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestReconciled = Reconciled.TestCase
