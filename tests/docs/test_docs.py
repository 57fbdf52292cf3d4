"""The documentation says what the code does: its settings, commands, files, links and names are there."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from pages import PAGES, REPOSITORY, Block, anchors, blocks, commands, inline, links

from whippletree.cli.main import build_parser
from whippletree.cli.rollout_grade import RubricFile
from whippletree.configuration import convert
from whippletree.control.rubrics.config import TaskCriteria
from whippletree.harnesses import shipped_settings
from whippletree.loop.config import RunConfig
from whippletree.loop.grid.config import GridConfig
from whippletree.loop.sft.config import SftConfig

BLOCKS = [block for page in PAGES for block in blocks(page)]
FILES = (RunConfig, GridConfig, SftConfig, RubricFile, TaskCriteria)
MINIMAL: dict[str, Any] = {"sources": [{"name": "trail", "tasks": {"kind": "trail"}}]}
TASK_TOML = {"version", "schema_version", "metadata", "agent", "verifier", "environment", "solution", "task", "author"}
TASK_TOML |= {"steps", "artifacts", "multi_step_reward_strategy"}
SUFFIXES = {
    "py",
    "toml",
    "md",
    "json",
    "jsonl",
    "csv",
    "jinja",
    "html",
    "png",
    "sqlite",
    "safetensors",
    "parquet",
    "sh",
    "log",
    "txt",
    "seg",
}
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))


def named(found: list[Block]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", found, ids=lambda block: block.name)


# --- settings ------------------------------------------------------------------------------------------------------------


def members(kind: Any) -> list[Any]:
    """The structs and tables that a value of `kind` may be."""
    if get_origin(kind) in (Union, types.UnionType):
        return [found for part in get_args(kind) for found in members(part)]
    if get_origin(kind) in (list, tuple):
        return members(get_args(kind)[0])
    return [kind]


def is_setting(kinds: list[Any], path: list[str]) -> bool:
    """Whether a dotted path, from these structs on, names a key. "*" stands for every key; a number indexes a list."""
    if not path or path == ["*"]:
        return True
    if path[0].isdecimal():
        return is_setting(kinds, path[1:])
    for kind in kinds:
        if get_origin(kind) is dict:
            return len(path) == 1 and any(path[0] in settings.__struct_fields__ for settings in shipped_settings().values())
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            continue
        if path == [kind.__struct_config__.tag_field]:
            return True
        hints = get_type_hints(kind)
        if path[0] in hints and is_setting(members(hints[path[0]]), path[1:]):
            return True
    return False


def setting_paths(page: Path) -> set[str]:
    """Inline code that reads like a setting: `loop.kind`, `loop.kind = "x"`, `[control.pool]`, `[[sources]]`."""
    tables = {name for kind in FILES for name in kind.__struct_fields__}
    found = set()
    for code in inline(page):
        bare = code.partition("=")[0].strip()
        table = re.fullmatch(r"\[\[?([a-z_.]+)\]\]?", bare)
        dotted = table[1] if table else bare
        if table and dotted.split(".")[0] in TASK_TOML - tables:
            continue
        is_path = re.fullmatch(r"[a-z_]+(\.([a-z0-9_]+|\*))+", dotted) and dotted.rpartition(".")[2] not in SUFFIXES
        if table or (is_path and dotted.split(".")[0] in tables):
            found.add(dotted)
    return found


@by_page
def test_every_setting_that_is_named_exists(page: Path):
    assert [path for path in sorted(setting_paths(page)) if not is_setting(list(FILES), path.split("."))] == []


def test_settings_are_recognised():
    for path in (
        "loop.kind",
        "sources.0.tasks.family.depths",
        "sources.harness.settings.step_limit",
        "engine.python",
        "model.kind",
    ):
        assert is_setting([RunConfig], path.split(".")), path
    for path in ("loop.kinds", "lop.kind", "control.pool.tenant", "sources.harness.settings.steps"):
        assert not is_setting([RunConfig], path.split(".")), path


@named([block for block in BLOCKS if block.language == "toml"])
def test_every_toml_block_is_right(block: Block):
    data = tomllib.loads(block.text)
    if set(data) <= TASK_TOML and not set(data) & set(RunConfig.__struct_fields__):
        return  # of a task.toml; tests/tasks reads those
    if "data" in data:
        convert(SftConfig, data, block.name).check()
        return
    if set(data) in ({"rubrics"}, {"criteria"}):
        convert(RubricFile if "rubrics" in data else TaskCriteria, data, block.name)
        return
    if "grid" in data:
        convert(GridConfig, data, block.name).check()
        return
    config = convert(RunConfig, MINIMAL | data, block.name)
    for source in config.sources:
        if source.harness.name in shipped_settings():
            convert(shipped_settings()[source.harness.name], source.harness.settings, f"{block.name}: sources.harness.settings")


# --- commands ------------------------------------------------------------------------------------------------------------


@named([block for block in BLOCKS if commands(block, "whippletree")])
def test_every_command_line_parses(block: Block):
    for arguments in commands(block, "whippletree"):
        try:
            build_parser().parse_args([word for word in arguments if not re.fullmatch(r"\[.*\]", word)])
        except SystemExit as error:
            assert error.code == 0, f"{block.name}: whippletree {' '.join(arguments)}"


def command_tree(parser: argparse.ArgumentParser) -> dict[str, Any]:
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: command_tree(child) for action in below for name, child in action.choices.items()}


@by_page
def test_every_command_that_is_named_exists(page: Path):
    for code in inline(page):
        if not code.startswith("whippletree "):
            continue
        tree = command_tree(build_parser())
        for word in code.split()[1:]:
            if not tree or not re.fullmatch(r"[a-z]+", word):
                break
            assert word in tree, f"{page.name}: {code}"
            tree = tree[word]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9-]+):", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


@by_page
def test_every_make_target_that_is_named_exists(page: Path):
    wanted = {words[0] for block in blocks(page) for words in commands(block, "make") if words}
    wanted |= {code.split()[1] for code in inline(page) if re.match(r"make [a-z]", code)}
    assert wanted - makefile_targets() == set()


@named([block for block in BLOCKS if block.language in ("sh", "bash") and "test" not in block.marks])
def test_every_shell_block_is_valid_shell(block: Block):
    done = subprocess.run(
        ["sh", "-n"], input=block.text.replace("$ ", ""), capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr


def run_pages(*, slow: bool) -> list[Any]:
    """Pages with blocks to run, as parameters."""
    mark = "run, slow" if slow else "run"
    return [page for page in PAGES if any(block.marks.get("test") == mark for block in blocks(page))]


def run_blocks(page: Path, directory: Path, *, slow: bool) -> None:
    """Write the page's files, then run its marked blocks in order, in a directory that holds the examples."""
    shutil.copytree(REPOSITORY / "examples", directory / "examples")
    binaries = Path(sys.executable).parent
    for block in blocks(page):
        if "file" in block.marks:
            target = directory / block.marks["file"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        elif block.marks.get("test") == "run" or (slow and block.marks.get("test") == "run, slow"):
            script = "set -e\n" + re.sub(r"^\$ ", "", block.text, flags=re.MULTILINE)
            environment = {
                "PATH": f"{binaries}:/usr/bin:/bin",
                "PYTHONPATH": str(REPOSITORY),  # this tree's code, also where the environment has another's installed
                "HOME": str(Path.home()),
                "OMP_NUM_THREADS": "1",
                "LANG": "C.UTF-8",
            }
            done = subprocess.run(
                ["sh"],
                input=script,
                cwd=directory,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=900 if slow else 300,
            )
            assert done.returncode == 0, f"{block.name}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", run_pages(slow=False), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_that_are_marked_run(page: Path, tmp_path: Path):
    run_blocks(page, tmp_path / "work", slow=False)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", run_pages(slow=True), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_that_take_longer_run(page: Path, tmp_path: Path):
    run_blocks(page, tmp_path / "work", slow=True)


# --- names, files, links -------------------------------------------------------------------------------------------------


@named([block for block in BLOCKS if block.language == "python"])
def test_python_blocks_are_valid_and_their_imports_work(block: Block):
    for statement in ast.walk(ast.parse(block.text)):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            module = importlib.import_module(statement.module)
            assert [name.name for name in statement.names if not hasattr(module, name.name)] == [], block.name


def resolve(dotted: str) -> Any:
    """The module, or attribute of a module, that a dotted name means."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if error.name is None or not dotted.startswith(error.name):
                raise
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise AssertionError(f"{dotted} is no module")


@by_page
def test_every_python_name_that_is_spelled_out_exists(page: Path):
    for code in inline(page):
        found = re.match(r"(?:python -m )?(whippletree(\.\w+)+)", code)
        if found:
            assert resolve(found[1]) is not None


@by_page
def test_every_path_that_is_named_exists(page: Path):
    pattern = r"((?:whippletree|docs|tests|bench|examples)/[\w./-]*\w/?)"
    found = {match[1] for code in inline(page) if (match := re.fullmatch(pattern, code))}
    assert [path for path in sorted(found) if not (REPOSITORY / path).exists()] == []


@by_page
def test_every_link_leads_somewhere(page: Path):
    lost = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            lost.append(target)
    assert lost == []


def test_every_page_is_linked_from_the_readme_or_the_index():
    roots = [path for path in (REPOSITORY / "README.md", REPOSITORY / "docs" / "index.md") if path.exists()]
    linked = {(root.parent / target.partition("#")[0]).resolve() for root in roots for target in links(root)}
    pages = {page for page in PAGES if page.parent.name == "docs" and page.name != "index.md"}
    assert sorted(page.name for page in pages - linked) == []


@by_page
def test_no_line_is_left_unfinished(page: Path):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"\b(?:TODO|FIXME|TBD|XXX)\b", text) == []
