import unittest

import stock


class Stock(unittest.TestCase):
    def test_total(self):
        self.assertEqual(stock.total([2, 3]), 5)

    def test_holes(self):
        self.assertEqual(stock.total([2, -1, 0]), 2)

    def test_nothing(self):
        self.assertEqual(stock.total([]), 0)

    def test_missing(self):
        self.assertEqual(stock.missing([2, 3], 9), 4)

    def test_none_missing(self):
        self.assertEqual(stock.missing([9], 4), 0)

    def test_full(self):
        self.assertTrue(stock.is_full([4, 4], 8))

    def test_not_full(self):
        self.assertFalse(stock.is_full([4, 3], 8))
