"""Rows and columns by grep, awk and sort. Amounts are whole numbers, so every answer is exact."""

from __future__ import annotations

from collections import Counter, defaultdict

from whippletree.tasks.suites.shell.parts import Draw, Exercise, lines

LEVELS = ("info", "warn", "error", "debug")


def one(draw: Draw) -> Exercise:
    """Count the lines with a word."""
    name, other = draw.names(2)
    level = draw.choice(LEVELS)
    rows = [f"{draw.choice(LEVELS)} {word}" for word in draw.words(draw.randint(6, 20))] + [f"{level} {other}"]
    draw.shuffle(rows)
    found = sum(row.startswith(level) for row in rows)
    return Exercise(
        f"how many lines of {name} hold {level}?", {name: lines(rows)}, [f"grep -c {level} {name}"], answer=str(found)
    )


def two(draw: Draw) -> Exercise:
    """Sum a column, or find its largest value."""
    name, *keys = draw.names(draw.randint(6, 12))
    amounts = draw.sample(range(10, 1000), len(keys))
    before = {name: lines(f"{key} {amount}" for key, amount in zip(keys, amounts, strict=True))}
    if draw.random() < 0.5:
        total = str(sum(amounts))
        return Exercise(
            f"submit the sum of the second column of {name}",
            before,
            [f"awk '{{ s += $2 }} END {{ print s }}' {name}"],
            answer=total,
        )
    kind, flag, pick = draw.choice([("largest", "-rn", max), ("smallest", "-n", min)])
    chosen = keys[amounts.index(pick(amounts))]
    return Exercise(
        f"each line of {name} is a name and a number; submit the name with the {kind} number",
        before,
        [f"sort -k2 {flag} {name} | head -n 1"],
        answer=chosen,
    )


def three(draw: Draw) -> Exercise:
    """Totals by group."""
    name, target, *keys = draw.names(7)
    rows = [(draw.choice(keys), draw.randint(1, 99)) for _ in range(draw.randint(12, 30))]
    rows += [(key, draw.randint(1, 9)) for key in keys]
    totals: Counter[str] = Counter()
    for key, amount in rows:
        totals[key] += amount
    before = {name: lines(f"{key},{amount}" for key, amount in rows)}
    best = totals.most_common(2)
    if draw.random() < 0.5 and best[0][1] > best[1][1]:
        return Exercise(
            f"{name} has lines NAME,AMOUNT; submit the name whose amounts add up to the most",
            before,
            [f"awk -F, '{{ t[$1] += $2 }} END {{ for (k in t) print t[k], k }}' {name} | sort -rn | head -n 1"],
            answer=best[0][0],
        )
    return Exercise(
        f'{name} has lines NAME,AMOUNT; write a line "NAME TOTAL" for each name into {target}, sorted by name',
        before,
        [f"awk -F, '{{ t[$1] += $2 }} END {{ for (k in t) print k, t[k] }}' {name} | LC_ALL=C sort > {target}"],
        after={target: lines(f"{key} {totals[key]}" for key in sorted(totals))},
    )


def four(draw: Draw) -> Exercise:
    """Join two tables, or choose by time and count what differs."""
    orders, people, target, *rest = draw.names(13)
    cities, customers = rest[:3], rest[3:]
    if draw.random() < 0.5:
        home = {who: draw.choice(cities) for who in customers}
        rows = [(number, draw.choice(customers), draw.randint(1, 500)) for number in range(1, draw.randint(16, 30))]
        totals: dict[str, int] = defaultdict(int)
        for _, who, amount in rows:
            totals[home[who]] += amount
        return Exercise(
            f"{orders} has lines NUMBER,CUSTOMER,AMOUNT and {people} lines CUSTOMER,CITY; write a line CITY,TOTAL for each "
            f"city with orders into {target}, the largest total first, cities with equal totals by name",
            {
                orders: lines(f"{number},{who},{amount}" for number, who, amount in rows),
                people: lines(f"{who},{city}" for who, city in sorted(home.items())),
            },
            [
                f"awk -F, 'NR == FNR {{ c[$1] = $2; next }} {{ t[c[$2]] += $3 }} END {{ for (k in t) print k \",\" t[k] }}' "
                f"{people} {orders} | LC_ALL=C sort -t, -k2,2nr -k1,1 > {target}"
            ],
            after={target: lines(f"{city},{totals[city]}" for city in sorted(totals, key=lambda key: (-totals[key], key)))},
        )
    rows_ = [
        (f"2024-{draw.randint(1, 12):02d}-{draw.randint(1, 28):02d}", draw.choice(customers), draw.choice(LEVELS))
        for _ in range(draw.randint(40, 60))
    ]
    first, last = f"2024-{draw.randint(1, 5):02d}-01", f"2024-{draw.randint(7, 11):02d}-28"
    found = {who for day, who, level in rows_ if first <= day <= last and level == "error"}
    return Exercise(
        f"{orders} has lines DAY NAME LEVEL; how many different names have a line with error from {first} to {last}, "
        "both included?",
        {orders: lines(" ".join(row) for row in sorted(rows_))},
        [
            f'awk \'$1 >= "{first}" && $1 <= "{last}" && $3 == "error" {{ print $2 }}\' {orders} | sort -u | wc -l',
        ],
        answer=str(len(found)),
    )


GRADES = (one, two, three, four)
