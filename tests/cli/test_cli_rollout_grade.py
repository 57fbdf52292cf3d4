"""`whippletree rollouts grade` over a recorded run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from control_world import write_task
from judge_parts import record_said
from threaded_chat import ThreadedChat, judged, threaded_chat

from whippletree.cli.main import main
from whippletree.configuration import dump
from whippletree.loop.config import RunConfig, SourceSection
from whippletree.loop.sources import TrailTasks
from whippletree.protocols import AttemptOutcome
from whippletree.store import open_store
from whippletree.types import Attempt, Message, ParsedMessage, RolloutSpec, VerifierResult

SAID = ["right", "right", "wrong", "wrong"]


def says(question: str) -> dict[str, int]:
    """Four points for whatever says "right", one for the rest."""
    return {"good": 4 if ">>>\nright\n<<<" in question else 1}


@pytest.fixture
def judge() -> Iterator[ThreadedChat]:
    with threaded_chat(judged(says)) as server:
        yield server


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with four rollouts, two of which passed."""
    task = write_task(tmp_path / "task")
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.toml").write_text(dump(RunConfig(sources=[SourceSection(name="s", tasks=TrailTasks())])))
    with open_store(directory / "store") as store:
        for number, text in enumerate(SAID):
            name = f"r{number}"
            spec = RolloutSpec(rollout_id=name, group_id="g", source="s", task_id="t", task_path=str(task), harness="h")
            store.create_rollouts([spec]).result()
            store.claim("w", 1).result()
            record_said(store, name, 0, [Message(role="user", content="say it")], ParsedMessage(content=text))
            reward = float(text == "right")
            result = VerifierResult(reward=reward, scores={"reward": reward})
            store.finish(AttemptOutcome(attempt=Attempt(rollout_id=name, attempt=1, started=0.0, result=result))).result()
    return directory


def rubrics(tmp_path: Path, judge: ThreadedChat, *, port: int = 0, more: str = "") -> str:
    path = tmp_path / "rubrics.toml"
    path.write_text(
        '[[rubrics]]\nname = "style"\n'
        f'judge = {{ base_url = "http://127.0.0.1:{port or judge.server_port}/v1", model = "m" }}\n'
        f'criteria = [{{ name = "good", text = "it is right", points = 4 }}]\n{more}'
    )
    return str(path)


def test_the_comparison_is_printed_and_every_score_is_in_a_file(
    run: Path, judge: ThreadedChat, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rubrics(tmp_path, judge)
    assert main(["rollouts", "grade", str(run), "--rubrics", file]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0].split() == ["rubric", "scored", "failed", "mean", "passed", "not", "passed", "AUC", "Spearman"]
    assert said.splitlines()[1].split() == ["style", "4", "0", "0.625", "1.000", "0.250", "1.000", "1.000"]
    lines = [json.loads(line) for line in (run / "grades.jsonl").read_text().splitlines()]
    assert [(line["rollout_id"], line["tests"], line["score"]["score"]) for line in lines] == [
        ("r0", 1.0, 1.0),
        ("r1", 1.0, 1.0),
        ("r2", 0.0, 0.25),
        ("r3", 0.0, 0.25),
    ]
    assert len(judge.asked) == 2
    assert main(["rollouts", "grade", str(run), "--rubrics", file, "--limit", "1", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert (told["rubric"], told["scored"], told.get("auc")) == ("style", 1, None)
    assert len(judge.asked) == 2  # nothing is asked twice


def test_no_score_is_status_1_with_the_reason(
    run: Path, judge: ThreadedChat, tmp_path: Path, unused_tcp_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rubrics(tmp_path, judge, port=unused_tcp_port, more="limit = 0.2\n")
    assert main(["rollouts", "grade", str(run), "--rubrics", file]) == 1
    said = capsys.readouterr().out
    assert said.splitlines()[1].split() == ["style", "0", "4", "–", "–", "–", "–", "–"]
    assert "style: no score: no usable answer within 0.2 s" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "was run without rubrics"),
        (["--rubrics", "FILE", "--rubric", "stile"], "there is no rubric 'stile'"),
        (["--rubrics", "FILE", "--against", "speed"], "the tests gave no score 'speed'"),
    ],
)
def test_what_cannot_be_done_is_said(
    run: Path, judge: ThreadedChat, tmp_path: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = rubrics(tmp_path, judge)
    assert main(["rollouts", "grade", str(run), *(file if word == "FILE" else word for word in more)]) == 2
    assert said in capsys.readouterr().err
