"""Listing page by page, one rollout begun by name, cancelling, and pausing the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from whippletree.errors import ConflictError, FencedError, StoreError
from whippletree.protocols import AttemptOutcome, Store
from whippletree.store.cursors import cursor_of, place_of
from whippletree.types import Attempt, CauseClass, Event, QueueCount

Running = Callable[..., list[Attempt]]


def all_pages(store: Store, **options: Any) -> list[list[str]]:
    after, found = "", []
    while True:
        page = store.page(after=after, **options)
        found.append([rollout.spec.rollout_id for rollout in page.rollouts])
        after = page.next
        if not page.more:
            return found


def test_pages_follow_one_another_and_go_on_with_what_comes_later(store: Store, make: Any) -> None:
    store.create_rollouts([make.spec(name) for name in "abcde"]).result()
    assert all_pages(store, limit=2) == [["a", "b"], ["c", "d"], ["e"]]
    last = store.page(limit=10)
    assert (store.page(after=last.next).rollouts, store.page(after=last.next).next) == ((), last.next)
    store.create_rollouts([make.spec("f")]).result()
    assert [rollout.spec.rollout_id for rollout in store.page(after=last.next).rollouts] == ["f"]


def test_pages_by_change_tell_every_end_once(store: Store, make: Any, running: Running) -> None:
    running(*"abcdef")
    ends = {"states": ("succeeded", "failed"), "order": "updated"}
    for name in "db":
        store.finish(AttemptOutcome(attempt=make.rewarded(name))).result()
    first = store.page(**ends, limit=1)
    assert [rollout.spec.rollout_id for rollout in first.rollouts] == ["d"]
    assert first.more
    store.finish(AttemptOutcome(attempt=make.rewarded("a"))).result()
    rest = store.page(**ends, after=first.next)
    assert [rollout.spec.rollout_id for rollout in rest.rollouts] == ["b", "a"]
    assert store.page(**ends, after=rest.next).rollouts == ()


def test_filters_of_a_page_are_combined(store: Store, make: Any) -> None:
    store.create_rollouts(
        [make.spec("a", source="s1"), make.spec("b", source="s2"), make.spec("c", source="s1", purpose="eval", group_id="g2")]
    ).result()
    store.claim("w", 1).result()
    assert all_pages(store, source="s1") == [["a", "c"]]
    assert all_pages(store, source="s1", states=("running",)) == [["c"]]
    assert all_pages(store, purpose="train", group_id="g-1", states=("queuing", "running")) == [["a", "b"]]
    assert all_pages(store, group_id="g2", purpose="train") == [[]]


@pytest.mark.parametrize("place", [(0.0, 0), (0.0, 12)])
def test_a_cursor_leads_back_to_its_place(place: tuple[float, int]) -> None:
    assert place_of("created", cursor_of("created", place)) == place
    for updated in (1764450000.123456, 1.5e17, 0.1):
        assert place_of("updated", cursor_of("updated", (updated, 3))) == (updated, 3)


@pytest.mark.parametrize("text", ["x", "c", "c-1", "u1", "u1:2", "c1; DROP", "c" + "9" * 30, "unan:1"])
def test_any_other_text_is_no_cursor(store: Store, text: str) -> None:
    with pytest.raises(StoreError, match="no cursor"):
        store.page(order="updated" if text.startswith("c") else "created", after=text)


def test_events_come_in_the_order_in_which_they_were_written(store: Store, running: Running) -> None:
    running("a")
    made = [Event(event_id=f"e{n}", rollout_id="a", attempt=1, time=9.0 - n, kind="odd" if n % 2 else "even") for n in range(5)]
    for event in [*made, made[0]]:
        store.append_events([event]).result()
    first = store.event_page("a", limit=2)
    assert ([event.event_id for event in first.events], first.more) == (["e0", "e1"], True)
    assert [event.event_id for event in store.event_page("a", after=first.next).events] == ["e2", "e3", "e4"]
    odd = store.event_page("a", kind="odd")
    assert ([event.event_id for event in odd.events], odd.more) == (["e1", "e3"], False)
    assert store.event_page("a", after=odd.next + 5).events == ()


def test_one_rollout_is_begun_by_name_and_by_one_worker(store: Store, make: Any) -> None:
    store.create_rollouts([make.spec("a", task_path=""), make.spec("b")]).result()
    attempt = store.begin("a", "cluster").result()
    assert (attempt.attempt, attempt.worker) == (1, "cluster")
    assert store.begin("a", "cluster").result() == attempt
    with pytest.raises(ConflictError, match="run by 'cluster' already"):
        store.begin("a", "other").result()
    store.finish(AttemptOutcome(attempt=make.rewarded("a"))).result()
    with pytest.raises(ConflictError, match="from succeeded to running"):
        store.begin("a", "cluster").result()
    with pytest.raises(StoreError, match="no rollout"):
        store.begin("x", "cluster").result()


def test_external_rollouts_are_claimed_by_nobody(store: Store, make: Any) -> None:
    store.create_rollouts([make.spec("a", task_path="", input={"question": "?"}), make.spec("b")]).result()
    assert [attempt.rollout_id for attempt in store.claim("w", 9).result()] == ["b"]
    assert store.rollout("a").spec.input == {"question": "?"}


def test_sources_share_what_is_claimed(store: Store, make: Any) -> None:
    store.create_rollouts([make.spec(f"big-{n}", source="big") for n in range(8)]).result()
    store.create_rollouts([make.spec(f"small-{n}", source="small") for n in range(2)]).result()
    store.create_rollouts([make.spec("check", source="big", purpose="eval")]).result()
    names = [attempt.rollout_id for attempt in store.claim("w", 5).result()]
    assert names == ["check", "small-0", "big-0", "small-1", "big-1"]


def test_nothing_is_claimed_while_the_queue_is_paused(store: Store, make: Any) -> None:
    store.create_rollouts([make.spec("a"), make.spec("b")]).result()
    store.claim("w", 1).result()
    store.pause_queue(True).result()
    assert store.claim("w", 1).result() == []
    report = store.queue()
    assert (report.paused, store.rollout("a").state) == (True, "running")
    store.pause_queue(False).result()
    assert [attempt.rollout_id for attempt in store.claim("w", 1).result()] == ["b"]
    assert store.queue().counts == (QueueCount(source="trail", state="running", count=2),)
    assert not store.queue().paused


def test_cancelling_ends_what_has_not_ended(store: Store, make: Any, running: Running) -> None:
    running("done", "runs")
    store.finish(AttemptOutcome(attempt=make.rewarded("done"))).result()
    store.create_rollouts([make.spec("waits")]).result()
    for _ in range(2):
        done, runs, waits = store.cancel(["done", "runs", "waits"], "stale").result()
    assert (done.state, done.reward) == ("succeeded", 1.0)
    for rollout in (runs, waits):
        assert rollout.state == "failed"
        assert rollout.cause is not None
        assert (rollout.cause.cause, rollout.cause.message) == (CauseClass.CANCELLED, "stale")
    assert (runs.attempt, waits.attempt) == (1, 0)
    assert store.claim("w", 9).result() == []
    with pytest.raises(StoreError, match="no rollout 'x'"):
        store.cancel(["waits", "x"], "stale").result()


def test_what_a_cancelled_attempt_still_reports_changes_nothing(store: Store, make: Any, running: Running) -> None:
    running("a")
    store.cancel(["a"], "stale").result()
    with pytest.raises(FencedError):
        store.record_call(make.call(rollout_id="a"), make.payload()).result()
    assert store.finish(AttemptOutcome(attempt=make.rewarded("a"))).result() is False
    requeue = Attempt(rollout_id="a", attempt=1, started=0.0, cause=store.rollout("a").cause)
    assert store.finish(AttemptOutcome(attempt=requeue, requeue=True)).result() is False
    assert store.release_worker("w").result() == []
    assert (store.rollout("a").state, store.rollout("a").reward) == ("failed", None)
