import unittest

import prices


class Prices(unittest.TestCase):
    def test_reduced(self):
        self.assertEqual(prices.reduced(1000, 25), 750)

    def test_not_reduced(self):
        self.assertEqual(prices.reduced(1000, -5), 1000)

    def test_one_percent(self):
        self.assertEqual(prices.reduced(1000, 1), 990)

    def test_cheapest(self):
        self.assertEqual(prices.cheapest([5, 3, 9]), 3)

    def test_cheapest_of_none(self):
        self.assertIsNone(prices.cheapest([]))

    def test_heavy(self):
        self.assertEqual([prices.shipping(21), prices.shipping(20)], [990, 490])

    def test_light(self):
        self.assertEqual([prices.shipping(3), prices.shipping(2)], [490, 190])
