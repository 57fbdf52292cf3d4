"""Where a run's record lies, and that it is never mistaken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from postgres_cluster import Cluster

from whippletree.errors import StoreError
from whippletree.store import StoreConfig, open_store
from whippletree.store.place import FILE, Place, decide_place, find_place

ELSEWHERE = "postgresql://db.example/runs"


def test_the_directory_knows_its_record(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    with open_store(tmp_path / "My Run" / "store", config=StoreConfig(url=cluster.url)) as store:
        store.create_rollouts([make.spec()]).result()
    with open_store(tmp_path / "My Run" / "store") as store:
        assert store.rollout("r-1").state == "queuing"
    place = find_place(tmp_path / "My Run" / "store", StoreConfig())
    assert place is not None
    assert place.schema.startswith("whippletree_my_run_")


def test_two_runs_in_one_database_share_nothing(cluster: Cluster, tmp_path: Path, make: Any) -> None:
    config = StoreConfig(url=cluster.url)
    with open_store(tmp_path / "a", config=config) as one, open_store(tmp_path / "b", config=config) as other:
        one.create_rollouts([make.spec()]).result()
        assert other.rollouts() == []


def test_a_record_in_sqlite_is_not_left_behind(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    open_store(tmp_path).close()
    with pytest.raises(StoreError, match=r"is in store.sqlite, not in postgresql://db.example/runs"):
        open_store(tmp_path, config=StoreConfig(url=ELSEWHERE))


def test_another_database_than_the_one_written_down_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    open_store(tmp_path, config=StoreConfig(url=cluster.url)).close()
    with pytest.raises(StoreError, match=r"not in postgresql://db.example/runs.*if the database has moved"):
        open_store(tmp_path, config=StoreConfig(url=ELSEWHERE))


def test_a_record_that_went_missing_is_told_and_not_begun_anew(cluster: Cluster, tmp_path: Path) -> None:
    open_store(tmp_path, config=StoreConfig(url=cluster.url)).close()
    place = find_place(tmp_path, StoreConfig())
    assert place is not None
    cluster.sql(f"DROP SCHEMA {place.schema} CASCADE")
    with pytest.raises(StoreError, match="the record of this run is not there"):
        open_store(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", '{"url": "postgresql://db/x", "schema": "a; DROP SCHEMA public"}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(StoreError, match=r"postgresql\.json.*restore it from a copy"):
        open_store(tmp_path)


def test_whoever_is_slower_uses_the_place_of_the_faster_and_leaves_nothing(tmp_path: Path) -> None:
    schemas: list[Place] = []
    config = StoreConfig(url=ELSEWHERE)

    def create(place: Place) -> None:
        schemas.append(place)
        if len(schemas) == 1:  # while the first one makes its schema another process comes and is done
            assert decide_place(tmp_path, config, create, schemas.remove) == schemas[1]

    assert decide_place(tmp_path, config, create, schemas.remove) == schemas[0]
    assert len(schemas) == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
