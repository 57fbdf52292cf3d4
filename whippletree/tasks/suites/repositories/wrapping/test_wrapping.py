import unittest

from wrapping import columns, justify, shorten, wrap


class Wrapping(unittest.TestCase):
    def test_words_fill_a_line_up_to_its_width(self):
        self.assertEqual(wrap("aa bb cc", 5), ["aa bb", "cc"])

    def test_one_character_less_breaks(self):
        self.assertEqual(wrap("aa bb cc", 4), ["aa", "bb", "cc"])

    def test_a_long_word_is_cut(self):
        self.assertEqual(wrap("a abcdefg b", 3), ["a", "abc", "def", "g b"])

    def test_a_word_of_twice_the_width_leaves_nothing_over(self):
        self.assertEqual(wrap("abcdef g", 3), ["abc", "def", "g"])

    def test_spaces_and_lines_do_not_matter(self):
        self.assertEqual(wrap("  a \n b  ", 9), ["a b"])

    def test_nothing(self):
        self.assertEqual(wrap("", 5), [])

    def test_no_width_is_refused(self):
        with self.assertRaises(ValueError):
            wrap("a", 0)
        self.assertEqual(wrap("ab", 1), ["a", "b"])


class Filling(unittest.TestCase):
    def test_left_spaces_are_wider(self):
        self.assertEqual(justify("a b c", 8), "a   b  c")

    def test_even_spaces(self):
        self.assertEqual(justify("a b c", 7), "a  b  c")

    def test_one_word_stays(self):
        self.assertEqual(justify(" word ", 9), "word")

    def test_two_words_go_to_the_edges(self):
        self.assertEqual(justify("ab cd", 8), "ab    cd")


class Columns(unittest.TestCase):
    def test_numbers_to_the_right_and_text_to_the_left(self):
        self.assertEqual(columns([["a", 5], ["bcd", 10]]), ["a     5", "bcd  10"])

    def test_short_rows_end_early(self):
        self.assertEqual(columns([["a"], ["b", "c"]]), ["a", "b  c"])

    def test_truth_values_are_text(self):
        self.assertEqual(columns([[True, 1], ["no", 22]], gap=1), ["True  1", "no   22"])

    def test_no_rows(self):
        self.assertEqual(columns([]), [])


class Shortening(unittest.TestCase):
    def test_what_fits_stays(self):
        self.assertEqual(shorten("abcdef", 6), "abcdef")

    def test_a_mark_says_that_something_is_missing(self):
        self.assertEqual(shorten("abcdefgh", 6), "abc...")

    def test_no_space_before_the_mark(self):
        self.assertEqual(shorten("ab cdefgh", 6), "ab...")

    def test_room_for_the_mark_alone(self):
        self.assertEqual(shorten("abcdef", 3), "...")
        self.assertEqual(shorten("abcdef", 2), "..")
