import unittest

from queueing import Cycle, Jobs


def jobs():
    made = Jobs()
    made.add("ship", 1, after=["build", "test"])
    made.add("test", 5, after=["build"])
    made.add("build", 9)
    made.add("tea", 9)
    return made


class Queue(unittest.TestCase):
    def test_only_what_waits_for_nothing_is_ready(self):
        self.assertEqual(jobs().ready(), ["build", "tea"])

    def test_the_urgent_go_first(self):
        made = jobs()
        made.add("fire", 0)
        self.assertEqual(made.ready(), ["fire", "build", "tea"])

    def test_finishing_makes_others_ready(self):
        made = jobs()
        made.finish("build")
        self.assertEqual(made.ready(), ["test", "tea"])
        made.finish("test")
        self.assertEqual(made.ready(), ["ship", "tea"])

    def test_what_is_not_ready_cannot_be_finished(self):
        made = jobs()
        with self.assertRaises(ValueError):
            made.finish("ship")
        made.finish("tea")
        with self.assertRaises(ValueError):
            made.finish("tea")

    def test_the_whole_order(self):
        made = jobs()
        self.assertEqual(made.order(), ["build", "test", "ship", "tea"])
        self.assertEqual(made.ready(), ["build", "tea"])

    def test_order_leaves_out_what_is_done(self):
        made = jobs()
        made.finish("tea")
        self.assertEqual(made.order(), ["build", "test", "ship"])

    def test_a_cycle_is_named(self):
        made = Jobs()
        made.add("a", after=["b"])
        made.add("b", after=["a"])
        made.add("c")
        with self.assertRaises(Cycle) as caught:
            made.order()
        self.assertEqual(str(caught.exception), "a, b")
        self.assertEqual(made.ready(), ["c"])

    def test_an_unknown_job_is_an_error(self):
        made = Jobs()
        made.add("a", after=["nowhere"])
        with self.assertRaises(KeyError):
            made.order()

    def test_names_are_taken_once(self):
        made = jobs()
        with self.assertRaises(ValueError):
            made.add("tea")

    def test_what_a_job_waits_for(self):
        made = jobs()
        self.assertEqual(made.waiting_for("ship"), ["build", "test"])
        made.finish("build")
        self.assertEqual(made.waiting_for("ship"), ["test"])
        self.assertEqual(made.waiting_for("tea"), [])

    def test_depth(self):
        made = jobs()
        self.assertEqual([made.depth(name) for name in ("tea", "test", "ship")], [1, 2, 3])
