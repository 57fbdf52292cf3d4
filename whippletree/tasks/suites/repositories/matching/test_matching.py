import unittest

from matching import distance, first_unbalanced, matches, nearest


class Patterns(unittest.TestCase):
    def test_plain_text(self):
        self.assertTrue(matches("abc", "abc"))
        self.assertFalse(matches("abc", "abd"))
        self.assertFalse(matches("abc", "ab"))
        self.assertFalse(matches("ab", "abc"))

    def test_one_character(self):
        self.assertTrue(matches("a?c", "abc"))
        self.assertFalse(matches("a?c", "ac"))

    def test_any_number_of_them(self):
        for text in ("ac", "abc", "abbbc", "acc"):
            self.assertTrue(matches("a*c", text), text)
        self.assertFalse(matches("a*c", "acb"))

    def test_it_goes_back_where_it_must(self):
        self.assertTrue(matches("*ab*cd", "aab__ccd"))
        self.assertTrue(matches("a*a*a", "aaa"))
        self.assertFalse(matches("a*a*a", "aa"))

    def test_stars_at_the_end(self):
        self.assertTrue(matches("a**", "a"))
        self.assertTrue(matches("*", ""))
        self.assertTrue(matches("", ""))
        self.assertFalse(matches("", "a"))
        self.assertFalse(matches("*?", ""))


class Brackets(unittest.TestCase):
    def test_they_fit(self):
        for text in ("", "a(b[c]{d})", "()[]{}"):
            self.assertEqual(first_unbalanced(text), -1)

    def test_the_first_that_does_not_is_named(self):
        self.assertEqual(first_unbalanced("a(b]"), 3)
        self.assertEqual(first_unbalanced("())"), 2)
        self.assertEqual(first_unbalanced("(()"), 0)
        self.assertEqual(first_unbalanced("a[(b)"), 1)

    def test_quotes_hide_them(self):
        self.assertEqual(first_unbalanced('("(")'), -1)
        self.assertEqual(first_unbalanced('"a" )'), 4)


class Distances(unittest.TestCase):
    def test_each_kind_of_change(self):
        self.assertEqual(distance("cat", "cart"), 1)
        self.assertEqual(distance("cart", "cat"), 1)
        self.assertEqual(distance("cat", "cut"), 1)
        self.assertEqual(distance("cat", "cat"), 0)

    def test_several(self):
        self.assertEqual(distance("kitten", "sitting"), 3)
        self.assertEqual(distance("", "abc"), 3)
        self.assertEqual(distance("abc", ""), 3)
        self.assertEqual(distance("ab", "ba"), 2)

    def test_the_nearest_first(self):
        self.assertEqual(nearest("cat", ["dog", "cart", "bat", "cat", "carts"]), ["cat", "bat", "cart", "carts"])
        self.assertEqual(nearest("cat", ["cart", "carts"], most=1), ["cart"])
