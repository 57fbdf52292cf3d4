"""whippletree/configuration.py"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.configuration import Config, apply_override, convert, dump, field_docs, load
from whippletree.errors import ConfigurationError
from whippletree.loop.config import RunConfig

MINIMAL = '[[sources]]\nname = "trail"\n[sources.tasks]\nkind = "trail"\n'


class Square(Config, tag="square", tag_field="kind"):
    """A shape."""

    side: float = 1.0
    """Length."""


class Circle(Config, tag="circle", tag_field="kind"):
    """A shape."""

    radius: float = 1.0
    """Length."""


class Part(Config):
    """A table in a list."""

    name: str
    """Name."""
    shape: Square | Circle = Square()
    """Shape."""


class Whole(Config):
    """Every sort of field."""

    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    """A number.

    It has a second paragraph."""
    colour: Literal["red", "green"] = "red"
    """A choice."""
    note: str | None = None
    """Perhaps."""
    free: dict[str, object] = {}
    """Anything."""
    names: tuple[str, ...] = ()
    """A list."""
    parts: list[Part] = []
    """Tables."""
    shapes: list[Square | Circle] = []
    """Tables of several kinds."""
    named: dict[str, Part] = {}
    """Tables by name."""


def refused(text: str, kind: Any = RunConfig) -> ConfigurationError:
    import tomllib

    with pytest.raises(ConfigurationError) as caught:
        convert(kind, tomllib.loads(text), "run.toml")
    assert "run.toml" in caught.value.cause
    return caught.value


# --- unknown keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        (MINIMAL + "[loop]\nstep = 3\n", "loop.step", "loop.steps"),
        (MINIMAL + "[lopp]\nsteps = 3\n", "lopp", "loop"),
        (MINIMAL + "[control.deadlines]\nverfy = 3\n", "control.deadlines.verfy", "control.deadlines.verify"),
        (MINIMAL + "famliy = {}\n", "sources.0.tasks.famliy", "sources.0.tasks.family"),
        (MINIMAL + "[sources.tasks.family]\ndeph = [1]\n", "sources.0.tasks.family.deph", "sources.0.tasks.family.depths"),
        (MINIMAL + '[[sources]]\nnaem = "b"\n', "sources.1.naem", "sources.1.name"),
        (MINIMAL + '[engine]\nkind = "vllm"\nthread = 2\n', "engine.thread", "engine.threads"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(text: str, key: str, near: str):
    error = refused(text)
    assert error.cause == f"run.toml: unknown key {key}"
    assert error.next_step == f"did you mean {near}?"


def test_an_unknown_key_with_nothing_near_lists_what_is_known():
    assert refused(MINIMAL + "[sampling]\nxyzzy = 1\n").next_step == "known here: max_tokens, temperature, top_p"


def test_unknown_keys_are_found_in_lists_of_unions_and_in_tables_by_name():
    error = refused('[[shapes]]\nkind = "circle"\nside = 1.0\n', Whole)
    assert error.cause == "run.toml: unknown key shapes.0.side"
    error = refused('[named.a]\nname = "a"\n[named.b]\nnam = "b"\n', Whole)
    assert (error.cause, error.next_step) == ("run.toml: unknown key named.b.nam", "did you mean named.b.name?")


def test_an_unknown_kind_is_named_with_the_nearest_known_one():
    error = refused(MINIMAL + '[engine]\nkind = "embeded"\n')
    assert (error.cause, error.next_step) == ("run.toml: engine.kind is 'embeded'", "did you mean embedded?")


def test_a_missing_kind_lists_the_kinds():
    error = refused(MINIMAL + "[model]\ntiny = {}\n")
    assert error.cause == "run.toml: model.kind is missing"
    assert error.next_step == "one of directory, smollm2-135m, tiny"


# --- wrong values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (MINIMAL + '[loop]\nsteps = "many"\n', "loop.steps"),
        (MINIMAL + '[loop]\nkind = "fast"\n', "loop.kind"),
        (MINIMAL + "[loop]\nkind = 3\n", "loop.kind"),
        (MINIMAL + "loop = 3\n", "sources.0.tasks.loop"),
        ("loop = 3\n" + MINIMAL, "loop"),
        (MINIMAL + "[control]\nconcurrency = 0\n", "control.concurrency"),
        ('[[sources]]\nname = 3\ntasks = {kind = "trail"}\n', "sources.0.name"),
        ('[[sources]]\nname = "a"\ntasks = {kind = 3}\n', "sources.0.tasks.kind"),
        (MINIMAL + "[engine]\nkind = 'embedded'\nthreads = 1.5\n", "engine.threads"),
        ("[run]\nname = 'x'\n", "sources"),
    ],
)
def test_a_wrong_value_names_file_and_key(text: str, key: str):
    error = refused(text)
    assert key in error.cause
    assert error.next_step


def test_a_wrong_choice_is_named_with_the_nearest_known_one():
    error = refused(MINIMAL + '[control]\nlaunch = "poll"\n')
    assert (error.cause, error.next_step) == ("run.toml: control.launch is 'poll'", "did you mean pool?")


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"no\.toml: No such file"):
        load(RunConfig, tmp_path / "no.toml")
    path = tmp_path / "run.toml"
    for data in (b"a = = 1\n", b"a = '\xff'\n"):
        path.write_bytes(data)
        with pytest.raises(ConfigurationError, match=r"run\.toml: not valid TOML"):
            load(RunConfig, path)


# --- overrides -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("count=3", {"count": 3}),
        ("a.b.c = 1.5", {"a": {"b": {"c": 1.5}}}),
        ("colour=green", {"colour": "green"}),
        ('colour="green"', {"colour": "green"}),
        ("note=", {"note": ""}),
        ("note=a=b", {"note": "a=b"}),
        ("note=3\ncount = 4", {"note": "3\ncount = 4"}),
        ("names=['x', 'y']", {"names": ["x", "y"]}),
        ("free={a = {b = [true]}}", {"free": {"a": {"b": [True]}}}),
        ("flag=true", {"flag": True}),
        ("url=http://127.0.0.1:1/v1", {"url": "http://127.0.0.1:1/v1"}),
    ],
)
def test_an_override_is_toml_or_bare_text(item: str, expected: dict[str, Any]):
    data: dict[str, Any] = {}
    apply_override(data, item)
    assert data == expected


def test_an_override_indexes_lists_from_0():
    data = {"parts": [{"name": "a"}, {"name": "b", "shape": {"kind": "square"}}], "names": ["x", "y"]}
    for item in ("parts.1.shape.kind=circle", "parts.0.name=z", "names.1=w"):
        apply_override(data, item)
    assert data == {"parts": [{"name": "z"}, {"name": "b", "shape": {"kind": "circle"}}], "names": ["x", "w"]}


@pytest.mark.parametrize(
    "item",
    ["count", "=3", "a..b=3", ".a=3", "parts.2.name=x", "parts.-1.name=x", "parts.².name=x", "count.deep=1", "names.0.x=1"],
)
def test_an_override_that_cannot_be_applied_is_named(item: str):
    with pytest.raises(ConfigurationError) as caught:
        apply_override({"count": 1, "parts": [{"name": "a"}], "names": ["x"]}, item)
    assert f"--set {item}" in caught.value.cause
    assert caught.value.next_step


def test_load_applies_overrides_before_it_checks(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL, encoding="utf-8")
    config = load(RunConfig, path, ("loop.steps=7", "sources.0.tasks.family.depths=[4]"))
    assert config.loop.steps == 7
    assert config.sources[0].tasks.family.depths == (4,)
    with pytest.raises(ConfigurationError, match=r"unknown key loop\.stepz"):
        load(RunConfig, path, ("loop.stepz=7",))


# --- documentation -------------------------------------------------------------------------------------------------------


def structs_below(kind: Any, seen: set[type]) -> set[type]:
    """Every struct that a value of `kind` can hold."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
        seen.add(kind)
        for field in msgspec.structs.fields(kind):
            structs_below(field.type, seen)
    for part in get_args(kind):
        structs_below(part, seen)
    return seen


def test_every_field_of_a_run_file_has_documentation():
    found = structs_below(RunConfig, set())
    assert len(found) > 15
    missing = [f"{kind.__name__}.{name}" for kind in found for name in kind.__struct_fields__ if not field_docs(kind).get(name)]
    assert missing == []


def test_every_struct_of_a_run_file_refuses_unknown_keys_and_has_a_docstring():
    for kind in structs_below(RunConfig, set()):
        assert issubclass(kind, Config), kind
        assert kind.__struct_config__.forbid_unknown_fields, kind
        assert kind.__doc__, kind


def test_every_field_but_those_that_say_what_is_meant_has_a_default():
    asked = ("RunConfig", "SourceSection", "DirectoryTasks", "DirectoryModel", "RubricConfig", "Criterion")
    for kind in structs_below(RunConfig, set()):
        for field in msgspec.structs.fields(kind):
            required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
            assert not required or kind.__name__ in asked, field.name


def test_documentation_is_read_from_under_the_field():
    assert field_docs(Whole)["count"] == "A number. It has a second paragraph."
    assert set(field_docs(Whole)) == set(Whole.__struct_fields__)


# --- dump ----------------------------------------------------------------------------------------------------------------


def reloaded(config: Config, tmp_path: Path) -> Config:
    path = tmp_path / "dumped.toml"
    path.write_text(dump(config), encoding="utf-8")
    return load(type(config), path)


def test_a_dumped_configuration_loads_to_an_equal_one(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text(
        MINIMAL + '[engine]\nkind = "vllm"\narguments = ["-x", "a b"]\n[engine.environment]\nA = "1"\n', encoding="utf-8"
    )
    config = load(RunConfig, path)
    assert reloaded(config, tmp_path) == config
    assert config.engine.environment == {"A": "1"}


def test_awkward_values_survive_a_dump(tmp_path: Path):
    text = 'a "quote"\n\ta tab \\ back\\slash \x7f \x00 ü 🙂'
    free = {
        text: text,
        "table": {"below": {"list": [1, [2.5], {"x": "y"}], "none": {}}, "empty": []},
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
        "day": datetime.date(2026, 1, 2),
        "small": 1e-300,
        "big": float("inf"),
        "no": False,
    }
    config = Whole(
        note=text,
        free=free,
        names=(text, ""),
        parts=[Part(name=text), Part(name="b", shape=Circle(radius=2.0))],
        shapes=[Circle(), Square(side=3.0)],
    )
    assert reloaded(config, tmp_path) == config
    assert reloaded(Whole(), tmp_path) == Whole()


values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=4), st.text(), st.lists(st.text(), max_size=3))
def test_free_settings_survive_a_dump(
    tmp_path_factory: pytest.TempPathFactory, free: dict[str, Any], note: str, names: list[str]
):
    config = Whole(free=free, note=note, names=tuple(names))
    assert reloaded(config, tmp_path_factory.getbasetemp()) == config


def test_what_toml_cannot_hold_is_refused():
    with pytest.raises(ConfigurationError, match="None cannot be written as TOML"):
        dump(Whole(free={"x": None}))


def test_a_dump_carries_the_documentation_of_keys_and_tables(tmp_path: Path):
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL, encoding="utf-8")
    text = dump(load(RunConfig, path))
    assert "# Groups in one batch.\ngroups_per_step = " in text
    assert "# The training loop.\n[loop]\n" in text
    assert all(len(line) <= 120 for line in text.splitlines() if line.startswith("#"))
