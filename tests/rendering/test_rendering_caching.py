"""A cache that is bounded in bytes."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from whippletree.rendering.caching import ByteCache


@given(entries=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 60)), max_size=40), limit=st.integers(0, 120))
def test_it_never_holds_more_than_its_limit_and_drops_the_least_recently_used(
    entries: list[tuple[int, int]], limit: int
) -> None:
    cache: ByteCache[int, int] = ByteCache(limit)
    model: dict[int, int] = {}  # key → size, least recently used first
    for key, size in entries:
        if key in model:
            assert cache.get(key) is not None
        cache.put(key, size, size)
        if size <= limit:
            model.pop(key, None)
            model[key] = size
        elif key in model:
            model[key] = model.pop(key)  # it was read
        while sum(model.values()) > limit:
            del model[next(iter(model))]
        assert cache.held == sum(model.values()) <= limit
    assert all(cache.get(key) is not None for key in model)


def test_what_is_too_big_is_not_held() -> None:
    cache: ByteCache[str, str] = ByteCache(10)
    cache.put("a", "x", 11)
    assert cache.get("a") is None
    assert cache.held == 0


def test_several_threads_may_use_it() -> None:
    cache: ByteCache[int, int] = ByteCache(500)
    wrong: list[int] = []

    def work(start: int) -> None:
        for number in range(start, start + 2000):
            key = number % 37
            value = cache.get(key)
            if value is not None and value != key:
                wrong.append(key)
            cache.put(key, key, 20 + key)

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert 0 < cache.held <= 500
