"""Making, moving, copying and removing files."""

from __future__ import annotations

from whippletree.tasks.suites.shell.parts import ENDINGS, Draw, Exercise, lines


def one(draw: Draw) -> Exercise:
    """One command on named files."""
    first, second, other = draw.names(3)
    text, given = draw.text(), draw.text()
    before = {first: text, other: given}
    kind = draw.choice(["make", "folder", "copy", "rename", "remove"])
    if kind == "make":
        return Exercise(f"make the empty file {second}", before, [f"touch {second}"], after={second: b""})
    if kind == "folder":
        return Exercise(f"make the directory {second}", before, [f"mkdir {second}"], folders=[second])
    if kind == "copy":
        done = {first: text, second: text}
        return Exercise(f"copy {first} to {second}", before, [f"cp {first} {second}"], after=done)
    if kind == "rename":
        return Exercise(f"rename {first} to {second}", before, [f"mv {first} {second}"], after={second: text}, gone=[first])
    return Exercise(f"remove {first}", before, [f"rm {first}"], after={other: given}, gone=[first])


def two(draw: Draw) -> Exercise:
    """A pattern, a path or a redirection."""
    kind = draw.choice(["sweep", "append", "join", "nest"])
    if kind == "sweep":
        ending, kept = draw.sample(ENDINGS, 2)
        *names, folder = draw.names(draw.randint(4, 6))
        before = {f"{name}.{ending if at % 2 else kept}": draw.text() for at, name in enumerate(names)}
        moved = [name for name in before if name.endswith(f".{ending}")]
        stay = {name: data for name, data in before.items() if name not in moved}
        return Exercise(
            f"move every file that ends in .{ending} into a new directory {folder}",
            before,
            [f"mkdir {folder}", f"mv *.{ending} {folder}/"],
            after=stay | {f"{folder}/{name}": before[name] for name in moved},
            gone=moved,
        )
    one_, two_, three = draw.names(3)
    texts = {one_: draw.text(), two_: draw.text()}
    if kind == "append":
        (word,) = draw.words(1)
        done = {one_: texts[one_] + lines([word])}
        return Exercise(f"append the line {word} to {one_}", texts, [f"echo {word} >> {one_}"], after=done)
    if kind == "join":
        return Exercise(
            f"write {one_} followed by {two_} into {three}",
            texts,
            [f"cat {one_} {two_} > {three}"],
            after=texts | {three: texts[one_] + texts[two_]},
        )
    return Exercise(
        f"move {one_} into the new directory {two_}x/{three}",
        texts,
        [f"mkdir -p {two_}x/{three}", f"mv {one_} {two_}x/{three}/"],
        after={f"{two_}x/{three}/{one_}": texts[one_]},
        gone=[one_],
    )


def three(draw: Draw) -> Exercise:
    """A loop or find."""
    kind = draw.choice(["sort", "empty", "ending"])
    endings = draw.sample(ENDINGS, 3)
    names = draw.names(9)
    if kind == "sort":
        before = {f"{name}.{endings[at % 3]}": draw.text() for at, name in enumerate(names)}
        return Exercise(
            "move each file into a directory that is called as its ending, without the dot",
            before,
            [f"mkdir {' '.join(endings)}", *(f"mv *.{ending} {ending}/" for ending in endings)],
            after={f"{name.split('.')[1]}/{name}": data for name, data in before.items()},
            gone=sorted(before),
        )
    top = names[8]
    if kind == "empty":
        places = [f"{top}/{names[0]}/{name}" if at % 2 else f"{top}/{name}" for at, name in enumerate(names[1:8])]
        before = {place: b"" if at % 3 == 0 else draw.text() for at, place in enumerate(places)}
        return Exercise(
            f"remove all empty files below {top}",
            before,
            [f"find {top} -type f -empty -delete"],
            after={place: data for place, data in before.items() if data},
            gone=sorted(place for place, data in before.items() if not data),
        )
    old, new = endings[:2]
    before = {f"{top}/{name}.{old if at % 2 else endings[2]}": draw.text() for at, name in enumerate(names[:6])}
    renamed = {path: f"{path.removesuffix(old)}{new}" for path in before if path.endswith(f".{old}")}
    return Exercise(
        f"in {top}, change the ending of each .{old} file to .{new}",
        before,
        [f'for path in {top}/*.{old}; do mv "$path" "${{path%.{old}}}.{new}"; done'],
        after={renamed.get(path, path): data for path, data in before.items()},
        gone=sorted(renamed),
    )


def four(draw: Draw) -> Exercise:
    """Decisions by what files hold."""
    names = draw.names(13)
    top, people, items = names[0], names[1:4], names[4:]
    if draw.random() < 0.5:
        before: dict[str, bytes] = {}
        after: dict[str, bytes] = {}
        for at, name in enumerate(items):
            who = people[at % 3] if at < 3 else draw.choice(people)
            before[f"{top}/{name}"] = lines([f"to: {who}", draw.line(), draw.line()])
            after[f"{who}/{name}"] = before[f"{top}/{name}"]
        return Exercise(
            f'the first line of each file in {top} is "to: NAME"; move each into a directory NAME beside {top}',
            before,
            [
                f'for path in {top}/*; do who=$(sed -n "1s/^to: //p" "$path"); mkdir -p "$who"; mv "$path" "$who/"; done',
            ],
            after=after,
            gone=sorted(before),
        )
    texts = [lines([draw.line(2, 5), word]) for word in draw.words(5)]
    before = {f"{top}/{name}": texts[at] if at < 5 else draw.choice(texts) for at, name in enumerate(items)}
    kept: dict[bytes, str] = {}
    for path in sorted(before):
        kept.setdefault(before[path], path)
    return Exercise(
        f"some files in {top} have the same content; of each such set keep the one whose name comes first, remove the others",
        before,
        [f"cd {top} && cksum * | sort -k1,2 -k3 | awk 'seen[$1 $2]++ {{ print $3 }}' | xargs -r rm"],
        after={path: data for data, path in kept.items()},
        gone=sorted(set(before) - set(kept.values())),
    )


GRADES = (one, two, three, four)
