import unittest

from tables import join, median, parse, split, totals, where

TEXT = 'name,city,amount\nann,Rome,5\nbob,"Paris, old",7.5\n\n"c ""the cat""",Rome,1\n'


class Parsing(unittest.TestCase):
    def test_rows_have_the_names_of_the_first_line(self):
        self.assertEqual(parse(TEXT)[0], {"name": "ann", "city": "Rome", "amount": "5"})

    def test_quotes(self):
        rows = parse(TEXT)
        self.assertEqual(rows[1]["city"], "Paris, old")
        self.assertEqual(rows[2]["name"], 'c "the cat"')

    def test_empty_lines_are_no_rows(self):
        self.assertEqual(len(parse(TEXT)), 3)
        self.assertEqual(parse("\n \n"), [])

    def test_a_row_of_another_length_is_named(self):
        with self.assertRaisesRegex(ValueError, "line 3 has 1 cells, not 2"):
            parse("a,b\n1,2\n3\n")

    def test_empty_cells(self):
        self.assertEqual(split(",a,,"), ["", "a", "", ""])
        self.assertEqual(split(""), [""])
        self.assertEqual(split('""'), [""])

    def test_other_separators(self):
        self.assertEqual(split("a;b,c", ";"), ["a", "b,c"])

    def test_an_open_quote_is_refused(self):
        with self.assertRaises(ValueError):
            split('a,"b')


class Working(unittest.TestCase):
    def test_where(self):
        rows = parse(TEXT)
        self.assertEqual([row["name"] for row in where(rows, city="Rome")], ["ann", 'c "the cat"'])
        self.assertEqual(where(rows, city="Rome", amount="5"), [rows[0]])
        self.assertEqual(where(rows, nothing="x"), [])

    def test_join(self):
        left = [{"id": 1, "a": "x"}, {"id": 2, "a": "y"}, {"id": 3, "a": "z"}]
        right = [{"id": 1, "b": 5}, {"id": 2, "b": 6}, {"id": 1, "b": 7, "a": "lost"}]
        joined = join(left, right, "id")
        self.assertEqual(joined, [{"id": 1, "a": "x", "b": 5}, {"id": 1, "a": "x", "b": 7}, {"id": 2, "a": "y", "b": 6}])

    def test_totals(self):
        self.assertEqual(totals(parse(TEXT), "city", "amount"), [("Paris, old", 7.5), ("Rome", 6.0)])
        same = [{"k": "b", "n": 1}, {"k": "a", "n": 1}]
        self.assertEqual(totals(same, "k", "n"), [("a", 1.0), ("b", 1.0)])

    def test_median(self):
        self.assertEqual(median([9, 1, 5]), 5)
        self.assertEqual(median([4, 1, 3, 2]), 2.5)
        self.assertEqual(median([7]), 7)
        with self.assertRaises(ValueError):
            median([])
