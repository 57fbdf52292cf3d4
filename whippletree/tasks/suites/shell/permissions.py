"""Modes of files and directories. What is given has the modes 644 and 755: others do not survive every way into a sandbox."""

from __future__ import annotations

from whippletree.tasks.suites.shell.parts import Draw, Exercise, lines

MODES = ("600", "640", "700", "750", "400", "440", "500", "550")


def one(draw: Draw) -> Exercise:
    """One chmod."""
    name, other = draw.names(2)
    mode = draw.choice(MODES)
    before = {name: draw.text(), other: draw.text()}
    return Exercise(f"set the mode of {name} to {mode}", before, [f"chmod {mode} {name}"], modes={name: mode, other: "644"})


def two(draw: Draw) -> Exercise:
    """By a pattern, or by letters."""
    names = draw.names(6)
    if draw.random() < 0.5:
        before = {f"{name}{'.sh' if at % 2 else '.txt'}": draw.text() for at, name in enumerate(names)}
        mode = draw.choice(MODES)
        return Exercise(
            f"set the mode of every .sh file to {mode}, and leave the others as they are",
            before,
            [f"chmod {mode} *.sh"],
            modes={name: mode if name.endswith(".sh") else "644" for name in before},
        )
    first, second = names[:2]
    return Exercise(
        f"make {first} a file that only its owner can read, write and run, and {second} one that nobody can write",
        {first: draw.text(), second: draw.text()},
        [f"chmod 700 {first}", f"chmod 444 {second}"],
        modes={first: "700", second: "444"},
    )


def three(draw: Draw) -> Exercise:
    """Files and directories of a tree."""
    top, sub, deep, *names = draw.names(9)
    folders = [top, f"{top}/{sub}", f"{top}/{sub}/{deep}"]
    before = {f"{folders[at % 3]}/{name}": draw.text() for at, name in enumerate(names)}
    of_files, of_folders = draw.choice(["600", "640", "440", "444"]), draw.choice(["700", "750"])
    return Exercise(
        f"below {top}, set the mode of all files to {of_files} and of all directories, {top} too, to {of_folders}",
        before,
        [
            f"find {top} -type f -exec chmod {of_files} {{}} +",
            f"find {top} -depth -type d -exec chmod {of_folders} {{}} +",
        ],
        modes=dict.fromkeys(before, of_files) | dict.fromkeys(folders, of_folders),
    )


def four(draw: Draw) -> Exercise:
    """By what files hold, or by a table."""
    top, table, *names = draw.names(10)
    paths = [f"{top}/{name}" if at % 2 else f"{top}/{names[0]}s/{name}" for at, name in enumerate(names)]
    if draw.random() < 0.5:
        scripts = {path for at, path in enumerate(paths) if at < 2 or draw.random() < 0.4}
        before = {path: lines([*(["#!/bin/sh"] if path in scripts else []), draw.line(), "#!/bin/sh"]) for path in paths}
        return Exercise(
            f"below {top}, set the mode of each file whose first line is #!/bin/sh to 700, and of each other file to 600",
            before,
            [
                f"find {top} -type f | while read -r path; do if head -n 1 \"$path\" | grep -q '^#!/bin/sh$'; "
                'then chmod 700 "$path"; else chmod 600 "$path"; fi; done',
            ],
            modes={path: "700" if path in scripts else "600" for path in paths},
        )
    modes = {path: draw.choice(MODES) for path in paths[:6]}
    return Exercise(
        f"each line of {table} is a mode and a path; give each path its mode",
        {path: draw.text() for path in paths} | {table: lines(f"{mode} {path}" for path, mode in modes.items())},
        [f'while read -r mode path; do chmod "$mode" "$path"; done < {table}'],
        modes=modes | dict.fromkeys(paths[6:], "644"),
    )


GRADES = (one, two, three, four)
