"""Reading, counting and changing lines and words."""

from __future__ import annotations

from collections import Counter

from whippletree.tasks.suites.shell.parts import Draw, Exercise, lines


def one(draw: Draw) -> Exercise:
    """Read a short file."""
    first, second = draw.names(2)
    given, decoy = draw.words(2)
    before = {first: lines([given]), second: lines([decoy])}
    return Exercise(f"submit the word that {first} holds", before, [f"cat {first}"], answer=given)


def two(draw: Draw) -> Exercise:
    """Count lines, or show one of them."""
    name, other = draw.names(2)
    texts = draw.words(draw.randint(5, 30))
    before = {name: lines(texts), other: draw.text(4, 8)}
    kind = draw.choice(["count", "line", "last"])
    if kind == "count":
        return Exercise(f"how many lines has {name}?", before, [f"wc -l < {name}"], answer=str(len(texts)))
    if kind == "last":
        return Exercise(f"submit the last line of {name}", before, [f"tail -n 1 {name}"], answer=texts[-1])
    at = draw.randint(2, len(texts) - 1)
    return Exercise(f"submit line {at} of {name}", before, [f"sed -n {at}p {name}"], answer=texts[at - 1])


def three(draw: Draw) -> Exercise:
    """Replace, sort or count over files."""
    name, target, *others = draw.names(5)
    old, new, *_ = draw.words(4)
    kind = draw.choice(["replace", "sort", "count"])
    if kind == "replace":
        texts = [draw.line(2, 6) for _ in range(draw.randint(4, 10))] + [f"{old} and {old}"]
        draw.shuffle(texts)
        return Exercise(
            f"in {name}, replace each {old} by {new}",
            {name: lines(texts)},
            [f"sed -i s/{old}/{new}/g {name}"],
            after={name: lines(text.replace(old, new) for text in texts)},
        )
    if kind == "sort":
        texts = draw.choices(draw.words(8), k=draw.randint(10, 20))
        return Exercise(
            f"write the different lines of {name}, sorted, into {target}",
            {name: lines(texts)},
            [f"sort -u {name} > {target}"],
            after={target: lines(sorted(set(texts)))},
        )
    folder = {f"{name}/{other}": [draw.line(1, 5) for _ in range(draw.randint(4, 9))] for other in others}
    folder[f"{name}/{others[0]}"].append(f"{old} {new}")
    found = sum(old in line.split() for texts in folder.values() for line in texts)
    return Exercise(
        f"how many lines of the files in {name} hold the word {old}?",
        {path: lines(texts) for path, texts in folder.items()},
        [f"cat {name}/* | grep -c {old}"],
        answer=str(found),
    )


def four(draw: Draw) -> Exercise:
    """The most frequent word, or lines put into another form."""
    name, target, *others = draw.names(6)
    if draw.random() < 0.5:
        chosen, *rest = draw.words(12)
        words = draw.choices(rest, k=60)
        words += [chosen] * (max(Counter(words).values()) + 1)
        draw.shuffle(words)
        pieces = {f"{name}/{other}": words[at::4] for at, other in enumerate(others)}
        return Exercise(
            f"which word is there most often in the files in {name}, all taken together?",
            {path: lines([" ".join(part[:8]), " ".join(part[8:])]) for path, part in pieces.items()},
            [f"cat {name}/* | tr ' ' '\\n' | grep . | sort | uniq -c | sort -rn | head -n 1"],
            answer=chosen,
        )
    people = [(last.capitalize(), first.capitalize(), draw.randint(20, 80)) for last, first in _pairs(draw, 9)]
    return Exercise(
        f'each line of {name} is "LAST, FIRST: AGE"; write "FIRST LAST" of all who are 50 or older into {target}, sorted',
        {name: lines(f"{last}, {first}: {age}" for last, first, age in people)},
        [f"sed -E 's/(.*), (.*): (.*)/\\2 \\1 \\3/' {name} | awk '$3 >= 50 {{ print $1, $2 }}' | LC_ALL=C sort > {target}"],
        after={target: lines(sorted(f"{first} {last}" for last, first, age in people if age >= 50))},
    )


def _pairs(draw: Draw, count: int) -> list[tuple[str, str]]:
    return list(zip(draw.names(count), draw.names(count), strict=True))


GRADES = (one, two, three, four)
