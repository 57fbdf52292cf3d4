import unittest

from intervals import complement, contains, intersect, merge, size


class Merging(unittest.TestCase):
    def test_overlapping_intervals_become_one(self):
        self.assertEqual(merge([(1, 5), (3, 9)]), [(1, 9)])

    def test_an_interval_inside_another_vanishes(self):
        self.assertEqual(merge([(1, 9), (3, 4)]), [(1, 9)])

    def test_touching_intervals_become_one(self):
        self.assertEqual(merge([(4, 6), (1, 3)]), [(1, 6)])

    def test_a_gap_of_one_number_stays(self):
        self.assertEqual(merge([(1, 3), (5, 6)]), [(1, 3), (5, 6)])

    def test_nothing_merges_to_nothing(self):
        self.assertEqual(merge([]), [])

    def test_an_empty_interval_is_refused(self):
        with self.assertRaises(ValueError):
            merge([(2, 1)])

    def test_a_single_number_is_an_interval(self):
        self.assertEqual(merge([(7, 7)]), [(7, 7)])


class Looking(unittest.TestCase):
    held = [(1, 3), (7, 7), (10, 20)]

    def test_both_ends_belong_to_it(self):
        for number in (1, 3, 7, 10, 20):
            self.assertTrue(contains(self.held, number), number)

    def test_what_is_between_does_not(self):
        for number in (0, 4, 6, 8, 9, 21):
            self.assertFalse(contains(self.held, number), number)

    def test_nothing_contains_nothing(self):
        self.assertFalse(contains([], 1))


class Combining(unittest.TestCase):
    def test_common_numbers(self):
        self.assertEqual(intersect([(1, 5), (8, 12)], [(4, 9)]), [(4, 5), (8, 9)])

    def test_a_single_common_number(self):
        self.assertEqual(intersect([(1, 5)], [(5, 9)]), [(5, 5)])

    def test_nothing_in_common(self):
        self.assertEqual(intersect([(1, 4)], [(5, 9)]), [])

    def test_the_longer_list_may_be_either(self):
        one, other = [(0, 100)], [(1, 2), (50, 60), (99, 120)]
        self.assertEqual(intersect(one, other), [(1, 2), (50, 60), (99, 100)])
        self.assertEqual(intersect(other, one), [(1, 2), (50, 60), (99, 100)])

    def test_gaps(self):
        self.assertEqual(complement([(3, 4), (8, 8)], 1, 10), [(1, 2), (5, 7), (9, 10)])

    def test_no_gap(self):
        self.assertEqual(complement([(0, 20)], 1, 10), [])

    def test_gaps_end_at_the_bounds(self):
        self.assertEqual(complement([(1, 3), (9, 30)], 2, 10), [(4, 8)])

    def test_what_lies_outside_is_no_matter(self):
        self.assertEqual(complement([(-9, -5), (50, 60)], 1, 4), [(1, 4)])

    def test_size(self):
        self.assertEqual(size([(1, 3), (7, 7)]), 4)
        self.assertEqual(size([]), 0)
