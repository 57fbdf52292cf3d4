"""`whippletree tasks import KIND SOURCE --to DIR`: tasks out of data sets on disk.

Invariants (tests/cli/test_cli_task_importing.py): what is dropped is told by name and reason; status 1 when nothing was kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from whippletree.cli.numbers import amount, count, seconds
from whippletree.cli.task_filtering import backing_of_flag
from whippletree.cli.task_injecting import tell_decision, tell_tally
from whippletree.configuration import convert
from whippletree.tasks.importing.questions import QuestionRows
from whippletree.tasks.importing.swe import SweRows
from whippletree.tasks.journal import Decision


def add_importing(tasks: Any) -> None:
    """Register `tasks import`."""
    kinds = tasks.add_parser("import", help="write tasks out of a data set on disk").add_subparsers(
        dest="kind", required=True, metavar="KIND"
    )
    harbor = kinds.add_parser("harbor", help="a folder of Harbor tasks: those that load are copied")
    harbor.add_argument("--sandbox", default="", metavar="KIND", help="read them for a backend; default: any without images")
    swe = kinds.add_parser("swe", help="rows shaped like SWE-bench's or SWE-smith's, with local git mirrors")
    swe.add_argument("--mirrors", required=True, metavar="DIR", help="directory with git repositories")
    swe.add_argument("--most-tests", type=count, default=200, metavar="N", help="tests of a row, at most; default: 200")
    swe.add_argument("--image", default=SweRows(mirrors="").image, help="image of the tasks; may hold {instance_id}")
    swe.add_argument("--framework", default="pytest", help="unittest or pytest; default: pytest")
    swe.add_argument("--start", default=".", metavar="DIR", help="where tests are looked for; default: .")
    swe.add_argument("--python-path", nargs="+", default=["."], metavar="DIR", help="default: .")
    swe.add_argument("--python", default="python3", help="the sandbox's Python; default: python3")
    swe.add_argument("--seconds", type=seconds, default=300.0, help="of one run of the tests; default: 300")
    questions = kinds.add_parser("questions", help="rows with a question and an answer")
    for name, default in (("question", "question"), ("answer", "answer"), ("name", "id")):
        questions.add_argument(f"--{name}", default=default, metavar="COLUMN", help=f"default: {default}")
    questions.add_argument("--tolerance", type=amount, default=0.0, metavar="X", help="how far a number may be off; default: 0")
    questions.add_argument("--corpus", default="", metavar="ROWS", help="documents to search: rows with id, title, text")
    for parser in (harbor, swe, questions):
        parser.add_argument("source", type=Path)
        parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where tasks and journal are written")
        parser.set_defaults(run=_import)


def _import(arguments: argparse.Namespace) -> int:
    from whippletree.tasks.importing.run import import_folders, import_rows

    if arguments.kind == "harbor":
        tally = import_folders(arguments.source, arguments.to, backing_of_flag(arguments), _tell)
    else:
        tally = import_rows(arguments.source, arguments.to, _settings(arguments), _tell)
    tell_tally(tally, arguments.to)
    return 0 if tally.kept else 1


def _settings(arguments: argparse.Namespace) -> SweRows | QuestionRows:
    given = vars(arguments)
    if arguments.kind == "questions":
        return convert(QuestionRows, {name: given[name] for name in QuestionRows.__struct_fields__}, "tasks import questions")
    data = {name: given[name] for name in ("mirrors", "most_tests", "image")}
    data["testing"] = {name: given[name] for name in ("framework", "start", "python_path", "python", "seconds")}
    return convert(SweRows, data, "tasks import swe")


def _tell(decision: Decision) -> None:
    if not decision.kept:
        tell_decision(decision)
