import unittest

import words


class Words(unittest.TestCase):
    def test_fits(self):
        self.assertEqual(words.short("tea", 3), "tea")

    def test_cut(self):
        self.assertEqual(words.short("coffee", 4), "cof.")

    def test_one(self):
        self.assertEqual(words.plural(1, "box"), "box")

    def test_several(self):
        self.assertEqual([words.plural(0, "cup"), words.plural(2, "cup")], ["cups", "cups"])
