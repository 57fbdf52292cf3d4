"""whippletree/ui/rollout.py"""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from recorded_run import EVIL, configure, new_run, play, story, train_spec, write_tokenizer
from rich.console import Console

from whippletree.errors import StoreError
from whippletree.loop.layout import Layout
from whippletree.protocols import AttemptOutcome
from whippletree.store import SqliteStore, open_store
from whippletree.types import Event, RubricScore, Usage, VerifierResult
from whippletree.ui.rollout import make_console, print_rollout, print_rollouts


def shown(store: SqliteStore, layout: Layout, rollout_id: str, console: Console | None = None) -> str:
    console = console or make_console(io.StringIO())
    print_rollout(store, layout, rollout_id, tokens=False, console=console)
    return console.file.getvalue()


def listed(store: SqliteStore) -> list[str]:
    console = make_console(io.StringIO())
    print_rollouts(store, store.rollouts(), console)
    return console.file.getvalue().splitlines()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return new_run(tmp_path / "run")[1]


def test_a_rollout_is_shown_with_phases_messages_and_calls(layout: Layout):
    with open_store(layout.store) as store:
        play(store, [train_spec("a")], [story(2, solved=True)], version=3)
        text = shown(store, layout, "a")
    assert text.startswith("a: succeeded, reward 1\n")
    assert "attempt 1: Submitted; boot 0.05 s, setup 0.02 s, agent 1.00 s" in text
    assert "verifier: reward 1.0" in text
    assert text.count("start at amber and submit the code") == 1
    assert 'assistant  bash {"command":"submit 17"}  [call 2, policy version 3]' in text
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert rows[0] == ["0", "12", "0", "6", "tool_calls", "3", "first", "yes", "0.20", "main", "yes"]
    assert [row[6] for row in rows[1:]] == ["extends", "extends"]
    assert "trained: 18 of 18 sampled tokens in 1 samples" in text


def test_calls_that_are_not_trained_say_why(layout: Layout):
    configure(layout, ('train_roles = ["main", "subagent", "compaction"]', 'train_roles = ["subagent"]'))
    with open_store(layout.store) as store:
        play(store, [train_spec("a")], [story(1, solved=True)], version=3)
        text = shown(store, layout, "a")
    assert text.count("role main is not trained") == 3
    assert "2 calls and not one trained token" in text


def test_a_failed_rollout_says_whose_fault_and_what_to_do(layout: Layout):
    failed = story(1, solved=False)
    failed.reward = None
    with open_store(layout.store) as store:
        play(store, [train_spec("a")], [failed], version=0)
        text = shown(store, layout, "a")
    assert "a: failed, reward none" in text
    assert "sandbox in boot: bwrap said" in text
    assert "what to do: run `whippletree check`" in text
    assert "attempt 1: sandbox;" in text


def test_what_a_sandbox_used_and_what_was_noted_is_shown(layout: Layout):
    with open_store(layout.store) as store:
        store.create_rollouts([train_spec("a")]).result()
        (attempt,) = store.claim("w", 1).result()
        usage = Usage(cpu_seconds=1.5, memory_peak_bytes=3 * 2**20, processes=0, disk_bytes=2**19)
        ended = msgspec.structs.replace(attempt, usage=usage, result=VerifierResult(reward=1.0))
        store.finish(AttemptOutcome(attempt=ended)).result()
        suspicion = {"trick": "download", "evidence": f"pypi.org:443 {EVIL}", "says": ""}
        kinds = {"hack_suspected": suspicion, "phase": {"name": "boot"}, "network_refused": {"host": "x" * 5_000}}
        events = [
            Event(event_id=kind, rollout_id="a", attempt=1, time=1.0, kind=kind, data=data) for kind, data in kinds.items()
        ]
        store.append_events(events).result()
        text = shown(store, layout, "a")
        assert store.attempts("a")[0].usage == usage
    assert "sandbox: 1.50 s of CPU, 3.0 MiB of memory at most, 0.5 MiB of files\n" in text
    assert "hack_suspected in attempt 1: trick download, evidence pypi.org:443 " in text and "phase in" not in text
    assert "network_refused in attempt 1: host xxx" in text and "x" * 500 not in text and "\x1b" not in text


def test_what_judges_gave_and_what_is_waited_for_is_shown(layout: Layout):
    given = RubricScore(name="style", model="m", score=0.5, criteria={"clear": 1.0, "short": 0.0}, why=f"too long{EVIL}")
    silent = RubricScore(name="tone", problem="down")
    with open_store(layout.store) as store:
        store.create_rollouts([train_spec("a"), train_spec("b")]).result()
        first, second = store.claim("w", 2).result()
        result = VerifierResult(reward=0.5, rubrics=(given, silent))
        store.finish(AttemptOutcome(attempt=msgspec.structs.replace(first, result=result))).result()
        waiting = VerifierResult(reward=None, scores={"correct": 1.0}, pending=("style",))
        store.hand_over(msgspec.structs.replace(second, result=waiting), "rubrics").result()
        text, other = shown(store, layout, "a"), shown(store, layout, "b")
    assert "rubric style: 0.5 by m (clear 1, short 0) too long" in text and "\x1b" not in text
    assert "rubric tone: no score: down" in text
    assert "waits for: style" in other and other.startswith("b: running, reward none")


def test_rollouts_without_an_attempt_or_still_running_can_be_shown(layout: Layout):
    with open_store(layout.store) as store:
        store.create_rollouts([train_spec("a"), train_spec("b")]).result()
        store.claim("w", 1).result()
        assert shown(store, layout, "a").splitlines()[2:] == ["attempt 1: unfinished"]
        assert shown(store, layout, "b").startswith("b: queuing, reward none")
        with pytest.raises(StoreError, match="nobody"):
            shown(store, layout, "nobody")


def test_a_rollout_whose_payloads_were_released_keeps_its_record(layout: Layout):
    with open_store(layout.store) as store:
        play(store, [train_spec("a")], [story(1, solved=True)], version=0)
        store.release(["a"])
        text = shown(store, layout, "a")
    assert "call 0 cannot be shown" in text
    assert "tool_calls" in text
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [row[-2:] for row in rows] == [["main", "unknown"]] * 2


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_model_wrote_cannot_drive_the_terminal(layout: Layout, terminal: bool):
    failed = story(1, solved=False, text=EVIL)
    failed.reward = None
    with open_store(layout.store) as store:
        play(store, [train_spec(EVIL, task_id=EVIL, group_id=EVIL)], [failed], version=0)
        for show in (
            lambda console: print_rollout(store, layout, EVIL, tokens=False, console=console),
            lambda console: print_rollouts(store, store.rollouts(), console),
        ):
            file = io.StringIO()
            show(Console(file=file, force_terminal=terminal, width=400, no_color=True))
            text = file.getvalue()
            assert r"\x1b]0;owned\x07" in text
            assert "[bold]" in text  # no markup
            for bad in ("\x1b]", "\x1b[2J", "\x07", "\u202e"):
                assert bad not in text


def test_a_list_without_a_terminal_is_never_cut(layout: Layout):
    name = "g00000-" + "m" * 150
    with open_store(layout.store) as store:
        play(store, [train_spec(name), train_spec("b")], [story(1, solved=True), story(2, solved=False)], version=0)
        store.create_rollouts([train_spec("c")]).result()
        lines = listed(store)
    assert lines[0].split() == ["rollout", "task", "state", "attempt", "reward", "calls", "cause"]
    assert sorted(line.split() for line in lines[1:]) == [
        ["b", "trail-000", "succeeded", "1", "0", "2"],
        ["c", "trail-000", "queuing", "0", "–", "0"],
        [name, "trail-000", "succeeded", "1", "1", "2"],
    ]


def test_every_token_is_shown_with_its_logprob_and_version(layout: Layout, tmp_path: Path):
    configure(layout, ('[rendering] template = ""', 'template = "tiny"'))
    services = msgspec.structs.replace(layout.read_services(), model_directory=str(write_tokenizer(tmp_path / "model")))
    layout.write_services(services)
    console = make_console(io.StringIO())
    with open_store(layout.store) as store:
        play(store, [train_spec("a")], [story(1, solved=True)], version=3)
        print_rollout(store, layout, "a", tokens=True, console=console)
        payload = store.payload(store.calls("a", 1)[0])
    lines = console.file.getvalue().split("call 0: sampled tokens\n")[1].splitlines()
    assert lines[0].split() == ["#", "id", "text", "logprob", "version"]
    for number, (token, logprob) in enumerate(zip(payload.sampled_ids.tolist(), payload.logprobs.tolist(), strict=True)):
        row = lines[1 + number].split()
        assert (row[0], row[1], row[-2], row[-1]) == (str(number), str(token), f"{logprob:.4f}", "3")
