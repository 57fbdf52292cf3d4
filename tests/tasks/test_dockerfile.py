"""The Dockerfile subset: honoured or refused, line by line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import TaskError
from whippletree.tasks.dockerfile import read_dockerfile


def _write(directory: Path, text: str, **files: str) -> Path:
    for name, content in {"data/a": "1", "data/b": "2", "tool": "#!/bin/sh", **files}.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    (directory / "Dockerfile").write_text(text)
    return directory / "Dockerfile"


def test_the_whole_subset_is_honoured(tmp_path):
    text = """# a comment
FROM --platform=linux/amd64 debian:bookworm-slim AS base
ENV HOME_DIR=/srv GREETING="good day" \\
    # a comment inside
    LEVEL=3
ENV OLD form with spaces
WORKDIR $HOME_DIR
WORKDIR app
COPY data/ ./
COPY tool /usr/local/bin/
COPY tool other
COPY data/a tool ${HOME_DIR}/both/
"""
    environment = read_dockerfile(_write(tmp_path, text))
    assert environment.base_image == "debian:bookworm-slim"
    assert environment.workdir == "/srv/app"
    assert environment.variables == {"HOME_DIR": "/srv", "GREETING": "good day", "LEVEL": "3", "OLD": "form with spaces"}
    assert environment.files == [
        (str(tmp_path / "data"), "/srv/app"),
        (str(tmp_path / "tool"), "/usr/local/bin/tool"),
        (str(tmp_path / "tool"), "/srv/app/other"),
        (str(tmp_path / "data/a"), "/srv/both/a"),
        (str(tmp_path / "tool"), "/srv/both/tool"),
    ]


def test_copy_takes_patterns(tmp_path):
    environment = read_dockerfile(_write(tmp_path, "FROM x\nCOPY data/* /app/"))
    assert environment.files == [(str(tmp_path / "data/a"), "/app/a"), (str(tmp_path / "data/b"), "/app/b")]


@pytest.mark.parametrize(
    "word", ["RUN apt-get update", "ADD x y", "USER nobody", "ENTRYPOINT ['x']", "CMD x", "ARG A=1", "Run x"]
)
def test_what_needs_a_build_is_refused_with_its_line(tmp_path, word):
    with pytest.raises(TaskError, match=r"Dockerfile:3: .*needs an image build"):
        read_dockerfile(_write(tmp_path, f"FROM x\n\n{word}\n"))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("FROM y", "second FROM"),
        ("COPY --from=other /a /b", "--from"),
        ("COPY --chmod=755 tool /b", "--chmod"),
        ("COPY missing /b", "no such file"),
        ("COPY ../secret /b", "build context"),
        ("COPY tool /a/../b", r"\.\."),
        ("COPY tool", "source and a target"),
        ("COPY data/* tool $NOWHERE/", "NOWHERE"),
        ("ENV A=1 B", "NAME=value"),
        ("ENV A='open", "quote"),
        ("ENV", "without a variable"),
        ("WORKDIR ${A:-/x}", "substitution"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path, line, says):
    with pytest.raises(TaskError, match=rf"Dockerfile:2.*{says}"):
        read_dockerfile(_write(tmp_path, f"FROM x\n{line}\n"))


def test_links_out_of_the_context_are_refused(tmp_path):
    (tmp_path / "outside").write_text("secret")
    context = tmp_path / "context"
    path = _write(context, "FROM x\nCOPY data/ /app/\n")
    (context / "data" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(TaskError, match=r"Dockerfile:2.*leads out of the build context"):
        read_dockerfile(path)


@pytest.mark.parametrize("text", ["", "# nothing\n", "WORKDIR /x\n"])
def test_a_base_image_is_needed(tmp_path, text):
    with pytest.raises(TaskError, match="no FROM"):
        read_dockerfile(_write(tmp_path, text))


def test_no_dockerfile_is_an_error_that_names_it(tmp_path):
    with pytest.raises(TaskError, match="Dockerfile"):
        read_dockerfile(tmp_path / "Dockerfile")


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet='FROMWKDICPYENVRUa./ $"\\\n={}*-', max_size=80))
def test_any_text_is_read_or_refused_and_paths_inside_are_absolute(tmp_path_factory, text):
    directory = tmp_path_factory.mktemp("context")
    try:
        environment = read_dockerfile(_write(directory, "FROM x\n" + text))
    except TaskError as error:
        assert "Dockerfile" in error.cause
        return
    for host, inside in environment.files:
        assert Path(host).resolve().is_relative_to(directory.resolve())
        assert inside.startswith("/")
        assert ".." not in inside.split("/")
    assert environment.workdir.startswith("/")
