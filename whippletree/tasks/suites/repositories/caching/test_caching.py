import unittest

from caching import Cache, remembered


class Caching(unittest.TestCase):
    def test_what_was_put_is_found(self):
        cache = Cache(2, 10)
        cache.put("a", 1, now=0)
        self.assertEqual(cache.get("a", now=9), 1)
        self.assertIsNone(cache.get("b", now=9))
        self.assertEqual(cache.get("b", now=9, default=7), 7)

    def test_it_is_gone_when_its_time_is_over(self):
        cache = Cache(2, 10)
        cache.put("a", 1, now=0)
        self.assertIsNone(cache.get("a", now=10))

    def test_the_one_used_longest_ago_makes_room(self):
        cache = Cache(2, 10)
        cache.put("a", 1, now=0)
        cache.put("b", 2, now=0)
        cache.get("a", now=1)
        cache.put("c", 3, now=1)
        self.assertEqual(cache.keys(), ["a", "c"])

    def test_a_key_that_is_put_again_takes_no_further_room(self):
        cache = Cache(2, 10)
        for value in (1, 2, 3):
            cache.put("a", value, now=value)
        cache.put("b", 0, now=3)
        self.assertEqual((len(cache), cache.get("a", now=4)), (2, 3))
        self.assertEqual(cache.get("a", now=12), 3)

    def test_old_entries_go_before_good_ones(self):
        cache = Cache(2, 10)
        cache.put("old", 1, now=0)
        cache.put("good", 2, now=5)
        cache.get("old", now=6)
        cache.put("new", 3, now=12)
        self.assertEqual(cache.keys(), ["good", "new"])

    def test_sweeping_says_how_many(self):
        cache = Cache(3, 10)
        cache.put("a", 1, now=0)
        cache.put("b", 1, now=0)
        cache.put("c", 1, now=5)
        self.assertEqual(cache.sweep(now=9), 0)
        self.assertEqual(cache.sweep(now=10), 2)
        self.assertEqual(cache.keys(), ["c"])

    def test_the_rate(self):
        cache = Cache(1, 10)
        self.assertEqual(cache.rate(), 0.0)
        cache.put("a", 1, now=0)
        for key in ("a", "a", "a", "b"):
            cache.get(key, now=1)
        self.assertEqual((cache.hits, cache.misses, cache.rate()), (3, 1, 0.75))

    def test_limits_are_positive(self):
        for size, lifetime in ((0, 1), (1, 0), (-1, 1)):
            with self.assertRaises(ValueError):
                Cache(size, lifetime)
        self.assertEqual(len(Cache(1, 0.5)), 0)


class Remembering(unittest.TestCase):
    def test_a_function_is_called_once_for_the_same_arguments(self):
        calls = []
        call = remembered(lambda one, other: calls.append(1) or one - other, Cache(4, 10), lambda: 0)
        self.assertEqual([call(5, 3), call(5, 3), call(3, 5)], [2, 2, -2])
        self.assertEqual(len(calls), 2)

    def test_none_is_a_result_too(self):
        calls = []
        call = remembered(lambda: calls.append(1), Cache(4, 10), lambda: 0)
        self.assertEqual((call(), call(), len(calls)), (None, None, 1))

    def test_an_exception_is_not_kept(self):
        answers = [ValueError("no"), 5]

        def work():
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        call = remembered(work, Cache(4, 10), lambda: 0)
        with self.assertRaises(ValueError):
            call()
        self.assertEqual(call(), 5)
