"""What lies in a store."""


def total(counts):
    found = 0
    for count in counts:
        if count > 0:
            found += count
    return found


def missing(counts, wanted):
    return max(wanted - total(counts), 0)


def is_full(counts, limit):
    return total(counts) >= limit
