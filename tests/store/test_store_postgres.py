"""PostgreSQL's own: passwords, lost connections, commits that are cut off, and transactions side by side."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from postgres_cluster import Cluster
from postgres_proxy import Cut, Proxy

from whippletree.configuration import convert
from whippletree.errors import ConfigurationError, FencedError, StoreError
from whippletree.store import RecordStore, StoreConfig, open_store, writes
from whippletree.store.place import FILE

SECRET = "hunter2-%21"


def named(directory: Path, url: str, **settings: Any) -> RecordStore:
    return open_store(directory, config=StoreConfig(url=url, **settings))


@pytest.fixture
def pair(cluster: Cluster, tmp_path: Path) -> Iterator[tuple[RecordStore, RecordStore]]:
    """Two processes' stores of one run, with a rollout that runs."""
    with named(tmp_path / "store", cluster.url) as one, named(tmp_path / "store", cluster.url) as other:
        yield one, other


# --- passwords -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db/runs",
        f"postgresql://db/runs?user=me&password={SECRET}",
        f"postgresql://db/runs?user=me&passw%6Frd={SECRET}",
        f"postgresql://db/runs?sslpassword={SECRET}",
        f"postgresql://me:{SECRET}@[db/runs",
        f"mysql://me:{SECRET}@db/runs",
    ],
)
def test_a_password_is_no_part_of_the_configuration_and_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError, match="url") as refused:
        convert(StoreConfig, {"url": url}, "run.toml")
    assert "hunter2" not in "".join(str(error) for error in (refused.value, refused.value.__cause__))
    with pytest.raises(ValueError, match="url") as plain:
        StoreConfig(url=url)
    assert "hunter2" not in repr(plain.value)


def test_the_password_is_read_from_its_file_and_never_shown(
    cluster: Cluster, tmp_path: Path, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.sql(f"DROP ROLE IF EXISTS locked; CREATE ROLE locked LOGIN PASSWORD '{SECRET}'")
    cluster.sql("GRANT CREATE ON DATABASE postgres TO locked")
    url = cluster.url.replace(f"//{cluster.user}@", "//locked@")
    secret, wrong = tmp_path / "secret", tmp_path / "wrong"
    secret.write_text(f"{SECRET}\n")
    wrong.write_text("hunter2-wrong\n")
    said: list[str] = []
    for file, message in ((wrong, "password authentication failed"), (tmp_path / "none", "password_file.*cannot be read")):
        with pytest.raises(StoreError, match=message) as refused:
            named(tmp_path / "a", url, password_file=str(file))
        said += [str(refused.value), repr(refused.value.__cause__)]
    with pytest.raises(StoreError, match="no password"):
        named(tmp_path / "a", url)
    config = StoreConfig(url=url, password_file=str(secret))
    with open_store(tmp_path / "a", config=config) as store:
        store.create_rollouts([make.spec()]).result()
        said += [repr(store), repr(config)]
    with open_store(tmp_path / "a") as again:  # the directory knows
        assert again.rollout("r-1").state == "queuing"
    said += [(tmp_path / "a" / FILE).read_text(), caplog.text]
    assert "hunter2" not in "".join(said)


def test_the_core_does_not_import_the_driver() -> None:
    code = "import sys, whippletree.store, whippletree.cli.main; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_driver_the_error_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from pathlib import Path; from whippletree.errors import StoreError\n"
        "from whippletree.store import StoreConfig, open_store\n"
        "open_store(Path(sys.argv[1]) / 'a').close()\n"
        "try: open_store(Path(sys.argv[1]) / 'b', config=StoreConfig(url='postgresql://db/x'))\n"
        "except StoreError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "pip install 'whippletree[postgres]'" in done.stdout


# --- durability and lost connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "ours"), [("off", "on"), ("on", "on"), ("local", "local"), ("remote_apply", "remote_apply")]
)
def test_a_commit_is_never_acknowledged_before_it_is_written(cluster: Cluster, tmp_path: Path, server: str, ours: str) -> None:
    cluster.sql(f"ALTER ROLE {cluster.user} SET synchronous_commit TO {server}")
    try:
        with named(tmp_path / "store", cluster.url) as store:
            assert store._writer.submit(_setting("synchronous_commit")).result() == ours
            assert store._writer.submit(_setting("lock_timeout")).result() == "30s"
    finally:
        cluster.sql(f"ALTER ROLE {cluster.user} RESET synchronous_commit")


def _setting(name: str) -> Any:
    return lambda tx: tx.connection.execute(f"SHOW {name}").fetchone()[0]


def cut_all(cluster: Cluster) -> None:
    """End every connection of a store, as a restarted server or a proxy's time limit does."""
    query = "FROM pg_stat_activity WHERE application_name = 'whippletree'"
    cluster.sql(f"SELECT pg_terminate_backend(pid, 10000) {query}")
    assert cluster.sql(f"SELECT count(*) {query}") == [(0,)]


def test_a_connection_that_was_lost_while_idle_is_not_noticed(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with named(tmp_path / "store", cluster.url) as store:
        for number in range(3):
            store.create_rollouts([make.spec(f"r{number}")]).result()
            assert store.rollout(f"r{number}").state == "queuing"
            cut_all(cluster)


def test_a_connection_that_is_lost_in_a_transaction_loses_nothing(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with named(tmp_path / "store", cluster.url) as store:
        cut = [True]

        def create(tx: writes.Transaction) -> None:
            writes.create_rollouts(tx, [make.spec()])
            if cut.pop():
                cut_all(cluster)
                cut.append(False)
            writes.create_rollouts(tx, [make.spec("r-2")])

        store._writer.submit(create).result()
        assert [rollout.spec.rollout_id for rollout in store.rollouts()] == ["r-1", "r-2"]


def test_a_server_that_stays_away_is_told_and_found_again(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with named(tmp_path / "store", cluster.url, busy_seconds=0.3) as store:
        store.create_rollouts([make.spec("a")]).result()
        cluster.kill()
        try:
            with pytest.raises(StoreError, match=r"1 writes was not committed.*is the server up\?"):
                store.create_rollouts([make.spec("b")]).result()
            with pytest.raises(StoreError, match=r"is the server up\?"):
                store.rollout("a")
            with pytest.raises(StoreError, match=r"cannot connect.*is the server up\?"):
                open_store(tmp_path / "store")
        finally:
            cluster.start()
        store.create_rollouts([make.spec("b")]).result()
        assert [rollout.spec.rollout_id for rollout in store.rollouts()] == ["a", "b"]


# --- commits that are cut off ----------------------------------------------------------------------------------------


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[Proxy]:
    made = Proxy(cluster.url)
    yield made
    made.close()


@pytest.mark.parametrize("cut", ["before", "after", "late"])
def test_of_a_commit_that_was_cut_off_the_truth_is_told(
    cluster: Cluster, proxy: Proxy, tmp_path: Path, make: Any, cut: Cut
) -> None:
    with named(tmp_path / "store", proxy.url) as store:
        store.create_rollouts([make.spec("a"), make.spec("b")]).result()
        proxy.cut = cut
        claim = store.claim("w", 1)
        if cut == "late":
            while cluster.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == [(0,)]:
                time.sleep(0.01)  # until it is being done again, and waits for the lock that the late one holds
            assert b"division by zero" in proxy.deliver()
        claimed = claim.result()  # whatever happened, it is done once
        assert proxy.cut == ""
        assert [attempt.rollout_id for attempt in claimed] == ["a"]
        assert [rollout.spec.rollout_id for rollout in store.rollouts(states=["running"])] == ["a"]
        assert store.attempts("a") == claimed


def test_a_server_that_comes_back_in_time_is_waited_for(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with named(tmp_path / "store", cluster.url) as store:
        store.create_rollouts([make.spec("a")]).result()
        cluster.kill()
        write = store.create_rollouts([make.spec("b")])
        found: list[str] = []
        reader = threading.Thread(target=lambda: found.append(store.rollout("a").state))
        reader.start()
        cluster.start()
        assert write.result() is None
        reader.join()
        assert found == ["queuing"]


def test_where_the_server_stays_away_it_is_said_that_nobody_knows(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with named(tmp_path / "store", cluster.url, busy_seconds=0.3) as store:
        store.create_rollouts([make.spec("a")]).result()

        def die(tx: writes.Transaction) -> None:
            writes.create_rollouts(tx, [make.spec("b")])
            cluster.kill()

        try:
            with pytest.raises(StoreError, match=r"whether it is stored is not known.*repeat the write"):
                store._writer.submit(die).result()
        finally:
            cluster.start()
        store.create_rollouts([make.spec("a"), make.spec("b")]).result()
        assert [rollout.spec.rollout_id for rollout in store.rollouts()] == ["a", "b"]


# --- side by side ----------------------------------------------------------------------------------------------------


class Halted:
    """A write that stands in the middle of its transaction until `go`."""

    def __init__(self, store: RecordStore, operation: Any, *, ordered: bool) -> None:
        self._reached, self._go = threading.Event(), threading.Event()

        def halting(tx: writes.Transaction) -> Any:
            done = operation(tx)
            self._reached.set()
            assert self._go.wait(30)
            return done

        self._future = store._writer.submit(halting, ordered=ordered)
        assert self._reached.wait(30)

    def go(self) -> Any:
        self._go.set()
        return self._future.result()


def begin_all(store: RecordStore, make: Any, *names: str) -> None:
    store.create_rollouts([make.spec(name) for name in names]).result()
    store.claim("w", len(names)).result()


def recording(store: RecordStore, call: Any, make: Any) -> Any:
    key = store._payloads.put([make.payload()])[0]
    return lambda tx: writes.record_call(tx, call, key)


def test_calls_of_two_processes_do_not_wait_for_one_another(pair: tuple[RecordStore, RecordStore], make: Any) -> None:
    one, other = pair
    begin_all(one, make, "a", "b")
    halted = Halted(one, recording(one, make.call("c1", rollout_id="a"), make), ordered=False)
    assert other.record_call(make.call("c2", rollout_id="b"), make.payload()).result(30).call_id == "c2"
    assert other.record_call(make.call("c3", rollout_id="a", index=1), make.payload()).result(30).call_id == "c3"
    assert other.create_rollouts([make.spec("c")]).result(30) is None
    halted.go()
    assert [call.call_id for call in one.calls("a", 1)] == ["c1", "c3"]


@pytest.mark.parametrize("end", ["seal", "finish", "cancel"])
def test_an_attempt_is_not_sealed_while_a_call_of_it_is_being_recorded(
    pair: tuple[RecordStore, RecordStore], make: Any, end: str
) -> None:
    one, other = pair
    begin_all(one, make, "a")
    halted = Halted(one, recording(one, make.call("c1", rollout_id="a"), make), ordered=False)
    sealed = other._writer.submit(ending_of(make, end))
    late = other.record_call(make.call("c2", rollout_id="a", index=1), make.payload())  # behind the seal
    assert not sealed.done()
    halted.go()
    assert sealed.result(30)
    assert isinstance(late.exception(30), FencedError)
    assert [call.call_id for call in one.calls("a", 1)] == ["c1"]


@pytest.mark.parametrize("end", ["seal", "finish", "cancel"])
def test_a_call_that_comes_while_its_attempt_is_being_sealed_is_fenced_off(
    pair: tuple[RecordStore, RecordStore], make: Any, end: str
) -> None:
    one, other = pair
    begin_all(one, make, "a")
    halted = Halted(one, ending_of(make, end), ordered=True)
    late = other.record_call(make.call("c1", rollout_id="a"), make.payload())
    assert not late.done()
    assert halted.go()
    assert isinstance(late.exception(30), FencedError)
    assert one.calls("a", 1) == []


def ending_of(make: Any, end: str) -> Any:
    from whippletree.protocols import AttemptOutcome

    return {
        "seal": lambda tx: writes.seal(tx, "a", 1),
        "finish": lambda tx: writes.finish(tx, AttemptOutcome(attempt=make.rewarded("a"))),
        "cancel": lambda tx: writes.cancel(tx, ["a"], "stale"),
    }[end]


def test_one_call_that_two_processes_record_at_once_is_recorded_once(pair: tuple[RecordStore, RecordStore], make: Any) -> None:
    one, other = pair
    begin_all(one, make, "a")
    call = make.call("c1", rollout_id="a")
    halted = Halted(one, recording(one, call, make), ordered=False)
    again = other.record_call(call, make.payload())
    first = halted.go()
    assert again.result(30) == first
    assert one.calls("a", 1) == [first]


def test_what_changes_states_becomes_visible_in_order(pair: tuple[RecordStore, RecordStore], make: Any) -> None:
    """A reader who goes on behind the newest that it has seen misses nothing of a slower process."""
    one, other = pair
    halted = Halted(one, lambda tx: writes.create_rollouts(tx, [make.spec("slow")]), ordered=True)
    fast = other.create_rollouts([make.spec("fast")])
    assert not fast.done()
    assert other.page(order="updated").rollouts == ()
    halted.go()
    fast.result(30)
    by_change = other.page(order="updated").rollouts
    assert [rollout.spec.rollout_id for rollout in by_change] == ["slow", "fast"]
    assert by_change[0].updated < by_change[1].updated


def test_a_process_that_stands_still_in_a_transaction_is_ended_by_the_server(
    cluster: Cluster, tmp_path: Path, make: Any
) -> None:
    with named(tmp_path / "store", cluster.url, busy_seconds=5.0) as frozen, named(tmp_path / "store", cluster.url) as other:
        halted = Halted(frozen, lambda tx: writes.create_rollouts(tx, [make.spec("a")]), ordered=True)
        other.create_rollouts([make.spec("b")]).result(30)  # its turn came without anyone's help
        assert [rollout.spec.rollout_id for rollout in other.rollouts()] == ["b"]
        halted.go()  # once it goes on it finds out, and does it again
        assert [rollout.spec.rollout_id for rollout in other.rollouts()] == ["b", "a"]


def test_text_that_the_database_cannot_hold_fails_alone(pair: tuple[RecordStore, RecordStore], make: Any) -> None:
    store, _ = pair
    good = [store.set_meta("a", "1"), store.set_meta("b", "2")]
    with pytest.raises(StoreError, match="NUL"):
        store.set_meta("c", "x\0y").result()
    assert [future.result() for future in good] == [None, None]
    spec = make.spec("r", input={"text": "x\0y"}, labels={"a": "\0"})
    store.create_rollouts([spec]).result()
    assert store.rollout("r").spec == msgspec.structs.replace(spec)
