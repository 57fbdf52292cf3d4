import datetime
import unittest

from calendar_days import add_months, date, is_leap, month_length, number, weekday, working_days


class Calendar(unittest.TestCase):
    def test_leap_years(self):
        self.assertEqual([year for year in (1900, 1996, 2000, 2001, 2024, 2100) if is_leap(year)], [1996, 2000, 2024])

    def test_months(self):
        self.assertEqual([month_length(2023, month) for month in (1, 2, 4, 12)], [31, 28, 30, 31])
        self.assertEqual(month_length(2024, 2), 29)
        for month in (0, 13):
            with self.assertRaises(ValueError):
                month_length(2024, month)

    def test_numbers_are_those_of_the_standard_library(self):
        for day in ((1, 1, 1), (1, 12, 31), (1999, 12, 31), (2000, 2, 29), (2000, 3, 1), (2024, 12, 31), (2025, 1, 1)):
            self.assertEqual(number(*day), datetime.date(*day).toordinal())

    def test_dates_are_the_inverse(self):
        for days in (1, 31, 32, 365, 366, 1461, 146097, 146098, 730119, 738000, 739000):
            found = datetime.date.fromordinal(days)
            self.assertEqual(date(days), (found.year, found.month, found.day))

    def test_what_is_no_day(self):
        for day in ((2023, 2, 29), (2023, 4, 31), (2023, 1, 0), (0, 1, 1)):
            with self.assertRaises(ValueError):
                number(*day)
        with self.assertRaises(ValueError):
            date(0)

    def test_weekdays(self):
        self.assertEqual(weekday(2024, 2, 29), "Thursday")
        self.assertEqual(weekday(2000, 1, 1), "Saturday")

    def test_months_later(self):
        self.assertEqual(add_months((2024, 1, 31), 1), (2024, 2, 29))
        self.assertEqual(add_months((2023, 11, 15), 2), (2024, 1, 15))
        self.assertEqual(add_months((2023, 12, 15), 0), (2023, 12, 15))

    def test_months_earlier(self):
        self.assertEqual(add_months((2024, 1, 31), -1), (2023, 12, 31))
        self.assertEqual(add_months((2024, 3, 31), -13), (2023, 2, 28))

    def test_working_days(self):
        self.assertEqual(working_days((2024, 2, 26), (2024, 3, 3)), 5)
        self.assertEqual(working_days((2024, 3, 1), (2024, 3, 1)), 1)
        self.assertEqual(working_days((2024, 3, 2), (2024, 3, 3)), 0)
        self.assertEqual(working_days((2024, 3, 5), (2024, 3, 4)), 0)
