"""Days as (year, month, day), counted without the standard library's dates."""

from __future__ import annotations

LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def is_leap(year):
    """Whether a year has 366 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def month_length(year, month):
    """Days of a month from 1 to 12."""
    if not 1 <= month <= 12:
        raise ValueError(f"there is no month {month}")
    return 29 if month == 2 and is_leap(year) else LENGTHS[month - 1]


def number(year, month, day):
    """Days since the first of January of the year 1, which is day 1."""
    if year < 1 or not 1 <= day <= month_length(year, month):
        raise ValueError(f"{year}-{month}-{day} is no day")
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400
    days += sum(month_length(year, other) for other in range(1, month))
    return days + day


def date(days):
    """The day with that number: the inverse of `number`."""
    if days < 1:
        raise ValueError("days are counted from 1")
    year = max(1, days // 366)
    while number(year + 1, 1, 1) <= days:
        year += 1
    rest = days - number(year, 1, 1)
    month = 1
    while rest >= month_length(year, month):
        rest -= month_length(year, month)
        month += 1
    return year, month, rest + 1


def weekday(year, month, day):
    """The name of the day of the week."""
    return NAMES[(number(year, month, day) - 1) % 7]


def add_months(day, months):
    """The same day so many months later or earlier; the last of the month where it has no such day."""
    year, month, of_month = day
    total = year * 12 + month - 1 + months
    year, month = total // 12, total % 12 + 1
    return year, month, min(of_month, month_length(year, month))


def working_days(first, last):
    """Days from Monday to Friday between two days, both included; 0 when they are in the wrong order."""
    start, end = number(*first), number(*last)
    return sum(1 for days in range(start, end + 1) if (days - 1) % 7 < 5)
