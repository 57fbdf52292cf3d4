import unittest

from roman import add, longest, read, write


class Roman(unittest.TestCase):
    def test_writing(self):
        for number, text in (
            (1, "I"),
            (4, "IV"),
            (9, "IX"),
            (14, "XIV"),
            (40, "XL"),
            (90, "XC"),
            (400, "CD"),
            (1994, "MCMXCIV"),
        ):
            self.assertEqual(write(number), text)

    def test_reading_is_the_inverse(self):
        for number in range(1, 4000, 7):
            self.assertEqual(read(write(number)), number)

    def test_the_bounds(self):
        self.assertEqual(write(3999), "MMMCMXCIX")
        self.assertEqual(read("MMMCMXCIX"), 3999)
        for number in (0, -1, 4000):
            with self.assertRaises(ValueError):
                write(number)

    def test_lower_case_and_spaces(self):
        self.assertEqual(read(" xlii "), 42)

    def test_other_spellings_are_refused(self):
        for text in ("IIII", "IC", "VX", "", "  ", "ABC", "MMMM", "XM"):
            with self.assertRaises(ValueError, msg=text):
                read(text)

    def test_sums(self):
        self.assertEqual(add("I", "II", "X"), "XIII")
        self.assertEqual(add("IV"), "IV")

    def test_longest(self):
        self.assertEqual(longest(1, 10), 8)
        self.assertEqual(longest(8, 9), 8)
        self.assertEqual(longest(5, 5), 5)
        self.assertEqual(longest(17, 28), 28)
        self.assertEqual(longest(7, 12), 8)
