"""Columns beside a call's payload, on SQLite and PostgreSQL"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whippletree.errors import AlignmentError, StoreError
from whippletree.store import RecordStore
from whippletree.types import Attempt

Running = Callable[..., list[Attempt]]
Opened = Callable[..., RecordStore]
VALUES = np.array([-0.5, -1.25], np.float32)


def test_a_column_is_there_for_every_process_once_it_is_durable(
    store: RecordStore, running: Running, opened: Opened, make: Any, tmp_path: Path
) -> None:
    running("r-1")
    recorded = store.record_call(make.call(), make.payload()).result()
    other = store.record_call(make.call("c-2", index=1), make.payload()).result()
    store.seal("r-1", 1).result()
    store.record_column(recorded, "teacher", VALUES).result()
    store.record_column(other, "else", VALUES).result()
    with opened(tmp_path / "store") as later:
        assert {name: found.tolist() for name, found in later.columns("r-1", 1, "teacher").items()} == {"c-1": [-0.5, -1.25]}
        assert later.columns("r-1", 2, "teacher") == later.columns("r-2", 1, "teacher") == {}
    assert store.payload(recorded).logprobs.tolist() == make.payload().logprobs.tolist()  # the call's own stay


def test_the_first_column_of_a_name_stays(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    recorded = store.record_call(make.call(), make.payload()).result()
    store.record_column(recorded, "teacher", VALUES).result()
    store.record_column(recorded, "teacher", VALUES - 1).result()
    assert store.columns("r-1", 1, "teacher")["c-1"].tolist() == VALUES.tolist()


def test_a_column_has_a_number_for_each_token_of_a_call_that_is_known(store: RecordStore, running: Running, make: Any) -> None:
    running("r-1")
    with pytest.raises(AlignmentError, match="2 sampled tokens, and 1 numbers"):
        store.record_column(make.call(), "teacher", VALUES[:1])
    with pytest.raises(StoreError, match="no call 'c-1'"):
        store.record_column(make.call(), "teacher", VALUES).result()


def test_columns_are_released_with_their_rollout_and_keep_a_segment_until_then(
    tmp_path: Path, opened: Opened, running: Running, store: RecordStore, make: Any
) -> None:
    running("r-1")
    recorded = store.record_call(make.call(), make.payload()).result()
    with opened(tmp_path / "store") as scorer:  # writes a segment of its own, which nobody writes when it has closed
        scorer.record_column(recorded, "teacher", VALUES).result()
    before = sorted((tmp_path / "store" / "payloads").glob("*.seg"))
    store.release([])
    assert store.columns("r-1", 1, "teacher")["c-1"].tolist() == VALUES.tolist()
    assert sorted((tmp_path / "store" / "payloads").glob("*.seg")) == before
    assert store.release(["r-1"]) == 1
    with pytest.raises(StoreError, match="were released"):
        store.columns("r-1", 1, "teacher")
    assert len(sorted((tmp_path / "store" / "payloads").glob("*.seg"))) < len(before)
