import unittest

from packing import boxes, change, compress, expand, luhn, share


class Boxes(unittest.TestCase):
    def test_the_largest_go_first(self):
        self.assertEqual(boxes([2, 5, 4, 3], 7), [[5, 2], [4, 3]])

    def test_a_box_may_be_full(self):
        self.assertEqual(boxes([7, 7], 7), [[7], [7]])

    def test_the_first_box_with_room(self):
        self.assertEqual(boxes([6, 6, 1, 1], 8), [[6, 1, 1], [6]])

    def test_what_does_not_fit_is_refused(self):
        for size in (8, 0, -1):
            with self.assertRaises(ValueError):
                boxes([size], 7)

    def test_nothing(self):
        self.assertEqual(boxes([], 7), [])


class Coins(unittest.TestCase):
    def test_the_fewest_coins(self):
        self.assertEqual(change(6, [1, 3, 4]), [3, 3])
        self.assertEqual(change(8, [1, 3, 4]), [4, 4])
        self.assertEqual(change(7, [1, 2, 5]), [5, 2])

    def test_no_way(self):
        self.assertIsNone(change(3, [2]))
        self.assertEqual(change(0, [2]), [])


class Runs(unittest.TestCase):
    def test_counts_of_one_are_left_out(self):
        self.assertEqual(compress("aaab"), "a3b")
        self.assertEqual(compress("abb"), "ab2")
        self.assertEqual(compress(""), "")

    def test_the_inverse(self):
        for text in ("", "a", "aaaaaaaaaaaab", "abc", "zz  z"):
            self.assertEqual(expand(compress(text)), text)

    def test_long_counts(self):
        self.assertEqual(expand("x12y"), "x" * 12 + "y")

    def test_digits_are_refused(self):
        with self.assertRaises(ValueError):
            compress("a1")
        with self.assertRaises(ValueError):
            expand("3a")


class Numbers(unittest.TestCase):
    def test_check_digits(self):
        self.assertTrue(luhn("4539 1488 0343 6467"))
        self.assertFalse(luhn("8273 1232 7352 0569"))
        self.assertTrue(luhn("18"))
        self.assertTrue(luhn("059"))

    def test_what_is_no_number_is_wrong(self):
        for digits in ("", "0", "12a4", " "):
            self.assertFalse(luhn(digits))

    def test_shares_add_up(self):
        self.assertEqual(share(10, [1, 1, 1]), [4, 3, 3])
        self.assertEqual(share(7, [2, 1]), [5, 2])
        self.assertEqual(share(9, [2, 1]), [6, 3])
        self.assertEqual(share(5, [0, 1]), [0, 5])

    def test_parts_are_positive(self):
        for parts in ([0, 0], [2, -1]):
            with self.assertRaises(ValueError):
                share(5, parts)
