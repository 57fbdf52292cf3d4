"""Finding files by name, content and size. Answers are paths; a leading "./" does not matter."""

from __future__ import annotations

import itertools

from whippletree.tasks.suites.shell.parts import Draw, Exercise, lines


def _tree(draw: Draw, count: int) -> tuple[list[str], list[str]]:
    """(paths of files in a small tree, names that are not in it)."""
    names = draw.names(count + 6)
    folders = [names[0], names[1], f"{names[0]}/{names[2]}", f"{names[1]}/{names[3]}"]
    paths = [f"{folders[at % 4]}/{name}" for at, name in enumerate(names[6:])]
    draw.shuffle(paths)
    return paths, names[4:6]


def one(draw: Draw) -> Exercise:
    """By name."""
    paths, _ = _tree(draw, 5)
    chosen = paths[0]
    name = chosen.rpartition("/")[2]
    return Exercise(
        f"submit the path of the file {name}", {path: draw.text() for path in paths}, [f"find . -name {name}"], answer=chosen
    )


def two(draw: Draw) -> Exercise:
    """By a word in it, or how many there are."""
    paths, _ = _tree(draw, draw.randint(8, 14))
    word, *others = draw.words(9)
    if draw.random() < 0.5:
        before = {path: lines(draw.sample(others, 3)) for path in paths}
        before[paths[0]] = lines([*draw.sample(others, 2), word])
        return Exercise(
            f"submit the path of the file that holds the word {word}", before, [f"grep -rl {word} ."], answer=paths[0]
        )
    ending, other = draw.sample(["txt", "log", "csv"], 2)
    named = [f"{path}.{draw.choice([ending, other])}" for path in paths] + [f"{paths[0]}x.{ending}"]
    found = sum(path.endswith(f".{ending}") for path in named)
    return Exercise(
        f"how many files that end in .{ending} are there, in all directories below this one?",
        {path: draw.text() for path in named},
        [f"find . -type f -name '*.{ending}' | wc -l"],
        answer=str(found),
    )


def three(draw: Draw) -> Exercise:
    """By size, or by several words."""
    paths, _ = _tree(draw, draw.randint(10, 16))
    if draw.random() < 0.5:
        sizes = draw.sample(range(20, 400), len(paths))
        before = {path: b"x" * (size - 1) + b"\n" for path, size in zip(paths, sizes, strict=True)}
        kind, flag, pick = draw.choice([("largest", "-rn", max), ("smallest", "-n", min)])
        chosen = paths[sizes.index(pick(sizes))]
        return Exercise(
            f"submit the path of the {kind} file below this directory",
            before,
            [f"find . -type f ! -name answer.txt -exec wc -c {{}} \\; | sort {flag} | head -n 1"],
            answer=chosen,
        )
    wanted, unwanted, *others = draw.words(9)
    before = {path: lines([*draw.sample(others, 2), wanted, unwanted]) for path in paths}
    before |= {path: lines(draw.sample(others, 3)) for path in paths[5:]}
    before[paths[0]] = lines([draw.choice(others), wanted])
    return Exercise(
        f"one file holds the word {wanted} and not the word {unwanted}: submit its path",
        before,
        [f"grep -rl {wanted} . | xargs grep -L {unwanted}"],
        answer=paths[0],
    )


def four(draw: Draw) -> Exercise:
    """Follow files, or sum over those that fit."""
    paths, (target, mark) = _tree(draw, draw.randint(12, 18))
    if draw.random() < 0.5:
        (word,) = draw.words(1)
        steps = paths[: draw.randint(4, 6)]
        before = {path: lines([draw.line()]) for path in paths}
        before |= {path: lines([f"next: {following}"]) for path, following in itertools.pairwise(steps)}
        before[steps[-1]] = lines([f"end: {word}"])
        return Exercise(
            f'{steps[0]} holds a line "next: PATH"; go on from file to file until one says "end: WORD", and submit that word',
            before,
            [
                f"path={steps[0]}; while grep -q ^next: $path; do path=$(sed -n 's/^next: //p' $path); done; cat $path",
            ],
            answer=word,
        )
    amounts = {path: draw.randint(1, 99) for path in paths}
    marked = {path for at, path in enumerate(paths) if at < 2 or draw.random() < 0.4}
    total = sum(amounts[path] for path in marked)
    return Exercise(
        f'each file has a line "amount: NUMBER"; write the sum over those that also have a line "{mark}" into {target}',
        {path: lines([*([mark] if path in marked else []), f"amount: {amount}"]) for path, amount in amounts.items()},
        [f"grep -rlx {mark} . | xargs sed -n 's/^amount: //p' | awk '{{ s += $1 }} END {{ print s }}' > {target}"],
        after={target: lines([str(total)])},
    )


GRADES = (one, two, three, four)
