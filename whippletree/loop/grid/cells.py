"""Cells: one rollout each of a task, in a harness, with a model. What is planned, what is on record, what it came to.

    grid file ─► wanted cells ─┬─► rollouts in the model's store (created once, by their ids) ─► read back as cells
                               └─ invalid ones: another rollout, where that is asked for (`tries`)

Which cell a rollout is stands in its labels, never in the form of its id.
Invariants (tests/loop/test_grid_cells.py):
- the same grid plans the same rollouts, so that none is created twice; more samples add rollouts and change none;
- a cell is judged by its last try; only an invalid cell is tried again, so no result is ever drawn anew;
- an invalid cell has a cause and counts neither as passed nor as failed;
- a task set that is cut is cut evenly over its sorted names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from whippletree.files import write_atomically
from whippletree.identifiers import joined
from whippletree.loop.grid.config import run_source
from whippletree.protocols import Store
from whippletree.types import Call, ParsedMessage, Rollout, RolloutSpec, Sampling, Struct

T = TypeVar("T")

HARNESS, SOURCE, SAMPLE, TRY = "grid_harness", "grid_source", "grid_sample", "grid_try"
"""Labels of a grid's rollouts."""


class GridTask(Struct):
    """A task of a source. `labels` come from its metadata.

    Example: GridTask(source="trail", task_id="trail-2-0-17", task_path="/tasks/trail-2-0-17", labels={"depth": "2"})
    """

    source: str
    task_id: str
    task_path: str
    labels: dict[str, str] = {}


class Place(Struct):
    """Which cell of a model it is. `sample` counts from 0.

    Example: Place(harness="mini-text", source="trail", task_id="trail-2-0-17", sample=3)
    """

    harness: str
    source: str
    task_id: str
    sample: int


class Cell(Struct, omit_defaults=False):
    """A cell as it stands. `tries`: rollouts that it took. `reward` None and a `cause` where it is invalid.

    `turns`: model requests that sampled something; `tool_calls`: those that the model made in them (a harness that reads
    commands out of text has none). `prompt_tokens` were fed, `cached_tokens` of them not computed anew; with a chat API all
    counts are its own. `seconds`: of the whole attempt, `agent_seconds` of the harness's work. `breaks`: broken prefixes by
    cause.

    Example: Cell(model="tiny", harness="mini-text", source="trail", task_id="trail-2-0-17", sample=0,
                  rollout_id="trail.mini-text-trail-2-0-17-00", state="succeeded", reward=1.0, passed=True)
    """

    model: str
    harness: str
    source: str
    task_id: str
    sample: int
    rollout_id: str
    state: Literal["queuing", "running", "succeeded", "failed"]
    tries: int = 1
    attempts: int = 0
    reward: float | None = None
    passed: bool = False
    cause: str = ""
    phase: str = ""
    message: str = ""
    exit_status: str = ""
    cut_short: str = ""
    grade: str = ""
    turns: int = 0
    tool_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    agent_seconds: float = 0.0
    breaks: dict[str, int] = {}
    labels: dict[str, str] = {}

    @property
    def place(self) -> Place:
        """Which cell of its model it is."""
        return Place(harness=self.harness, source=self.source, task_id=self.task_id, sample=self.sample)

    @property
    def valid(self) -> bool:
        """Whether it was judged."""
        return self.reward is not None

    @property
    def invalid(self) -> bool:
        """Whether it is over and was not judged: for reasons other than the model."""
        return self.state == "failed"

    @property
    def computed_tokens(self) -> int:
        """Tokens that the engine processed: those fed and not cached, and those sampled."""
        return self.prompt_tokens - self.cached_tokens + self.sampled_tokens


def spread(found: Sequence[T], limit: int) -> list[T]:
    """At most `limit` of them (0: all), evenly spread, in order."""
    count = len(found)
    return list(found) if not limit or limit >= count else [found[number * count // limit] for number in range(limit)]


def wanted(tasks: Sequence[GridTask], harnesses: Sequence[str], samples: int) -> list[tuple[Place, GridTask]]:
    """Every cell of a model, in the order in which they are run: a first sample of everything before a second of anything."""
    return [
        (Place(harness=harness, source=task.source, task_id=task.task_id, sample=sample), task)
        for sample in range(samples)
        for task in tasks
        for harness in harnesses
    ]


def spec_of(
    place: Place,
    task: GridTask,
    adapters: Mapping[str, str],
    *,
    name: str,
    sampling: Sampling,
    max_attempts: int,
    tried: int = 0,
) -> RolloutSpec:
    """The rollout of a cell. `name`: of its task in its harness; `adapters`: the harness behind each name of the grid; `tried`:
    rollouts that it had before."""
    again = f"-r{tried}" if tried else ""
    return RolloutSpec(
        rollout_id=f"{name}-{place.sample:02d}{again}",
        group_id=name,
        source=run_source(place.source, place.harness),
        task_id=place.task_id,
        task_path=task.task_path,
        harness=adapters[place.harness],
        purpose="eval",
        sampling=sampling,
        max_attempts=max_attempts,
        labels={
            **task.labels,
            HARNESS: place.harness,
            SOURCE: place.source,
            SAMPLE: str(place.sample),
            TRY: str(tried),
        },
    )


def place_of(spec: RolloutSpec) -> tuple[Place, int] | None:
    """Which cell a rollout is, and which try at it (from 0); None for one that is of no grid."""
    labels = spec.labels
    if HARNESS not in labels:
        return None
    place = Place(harness=labels[HARNESS], source=labels[SOURCE], task_id=spec.task_id, sample=int(labels[SAMPLE]))
    return place, int(labels[TRY])


def latest(rollouts: Iterable[Rollout]) -> dict[Place, tuple[Rollout, int]]:
    """The last try at each cell, and how many there were."""
    found: dict[Place, tuple[Rollout, int]] = {}
    for rollout in rollouts:
        known = place_of(rollout.spec)
        if known is not None and known[1] + 1 > found.get(known[0], (rollout, 0))[1]:
            found[known[0]] = (rollout, known[1] + 1)
    return found


def to_create(
    cells: Sequence[tuple[Place, GridTask]],
    known: Mapping[Place, tuple[Rollout, int]],
    adapters: Mapping[str, str],
    *,
    sampling: Sampling,
    max_attempts: int,
    retry_invalid: bool,
) -> list[RolloutSpec]:
    """Rollouts that are still to be created: those of new cells, and with `retry_invalid` another of each invalid one."""
    names = joined(_task_in_harness(place) for place in (*known, *(place for place, _ in cells)))
    specs = []
    for place, task in cells:
        rollout, tries = known.get(place, (None, 0))
        if rollout is None or (retry_invalid and rollout.state == "failed"):
            name = names[_task_in_harness(place)]
            specs.append(spec_of(place, task, adapters, name=name, sampling=sampling, max_attempts=max_attempts, tried=tries))
    return specs


def _task_in_harness(place: Place) -> tuple[str, str]:
    return run_source(place.source, place.harness), place.task_id


def read_cell(store: Store, model: str, place: Place, rollout: Rollout, tries: int, *, passing: float) -> Cell:
    """A cell from its rollout's record. Raises StoreError when a payload is gone."""
    spec = rollout.spec
    calls = store.calls(spec.rollout_id, rollout.attempt) if rollout.attempt else []
    attempt = next((one for one in store.attempts(spec.rollout_id) if one.attempt == rollout.attempt), None)
    cause = rollout.cause
    return Cell(
        model=model,
        harness=place.harness,
        source=place.source,
        task_id=place.task_id,
        sample=place.sample,
        rollout_id=spec.rollout_id,
        state=rollout.state,
        tries=tries,
        attempts=rollout.attempt,
        reward=rollout.reward,
        passed=rollout.reward is not None and rollout.reward >= passing,
        cause=str(cause.cause) if cause and rollout.reward is None else "",
        phase=cause.phase if cause and rollout.reward is None else "",
        message=cause.message if cause and rollout.reward is None else "",
        exit_status=attempt.exit_status if attempt else "",
        cut_short=str(attempt.cut_short.cause) if attempt and attempt.cut_short else "",
        grade=calls[0].grade if calls else "",
        turns=sum(call.sampled_tokens > 0 for call in calls),
        tool_calls=sum(tool_calls(store, call) for call in calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        sampled_tokens=sum(call.sampled_tokens for call in calls),
        seconds=max(0.0, attempt.finished - attempt.started) if attempt and attempt.finished else 0.0,
        agent_seconds=sum(phase.seconds for phase in attempt.phases if phase.name == "agent") if attempt else 0.0,
        breaks=dict(Counter(call.prefix_break for call in calls if call.prefix_break not in ("", "first"))),
        labels={name: text for name, text in spec.labels.items() if name not in (HARNESS, SOURCE, SAMPLE, TRY)},
    )


def tool_calls(store: Store, call: Call) -> int:
    """Tools that the model called in one turn. Raises StoreError when the payload is gone."""
    if call.finish_reason != "tool_calls" or call.payload is None:
        return 0
    return len(msgspec.json.decode(store.payload(call).reply_json, type=ParsedMessage).tool_calls)


def read_cells(store: Store, model: str, *, passing: float, written: Mapping[str, Cell]) -> list[Cell]:
    """The cells of a model's store by their last tries. `written`: cells that were read before, by rollout_id: what is over
    does not change, so it is not read again."""
    cells = []
    for place, (rollout, tries) in latest(store.rollouts(purpose="eval")).items():
        before = written.get(rollout.spec.rollout_id)
        if before is not None and before.state == rollout.state and rollout.terminal:
            passed = before.reward is not None and before.reward >= passing
            cells.append(msgspec.structs.replace(before, tries=tries, passed=passed))
        else:
            cells.append(read_cell(store, model, place, rollout, tries, passing=passing))
    return sorted(cells, key=lambda cell: (cell.source, cell.harness, cell.task_id, cell.sample))


def write_lines(path: Path, cells: Sequence[Cell]) -> None:
    """Cells as JSON lines, atomically."""
    write_atomically(path, b"".join(msgspec.json.encode(cell) + b"\n" for cell in cells))


def read_lines(path: Path) -> list[Cell]:
    """The cells of such a file; [] where there is none to be read, or it is of another version of this program."""
    try:
        return [msgspec.json.decode(line, type=Cell) for line in path.read_bytes().splitlines()]
    except (OSError, msgspec.DecodeError):
        return []
