"""What each harness of multi.toml really sends, written down for the warm-up: `python -m experiments.multi_harness.capture`.

    store ◄─ controller ─► sandbox { harness } ─► gateway ─► scripted engine: cat, echo, cat (no file), submit, a last word
                  the messages of its last call ─► generalised ─► formats/NAME.json

Everything but the engine is what a run has: the run file's settings, the launcher, the task's own files. Texts that differ
between two attempts become places; what remains must fit every result that was seen, or the capture is refused. Run it again
when a harness's version or settings change.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import platform
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from whippletree.configuration import load
from whippletree.control.config import HarnessBinding
from whippletree.control.process import run as controller
from whippletree.control.spec import ControllerSpec
from whippletree.engines.scripted import ScriptedEngine
from whippletree.errors import HarnessError
from whippletree.files import write_json
from whippletree.gateway.config import GatewayConfig
from whippletree.gateway.history import conversation, offered_tools
from whippletree.gateway.keys import load_secret
from whippletree.gateway.server import Parts, serving
from whippletree.harnesses import load_harness
from whippletree.harnesses.whitebox_loop import filled
from whippletree.learner.captured import CapturedFormat, Surroundings
from whippletree.loop.config import RunConfig, SourceSection
from whippletree.loop.grid.standin import write_stand_in
from whippletree.protocols import Harness, Store
from whippletree.rendering import RenderingConfig, load_renderer
from whippletree.rendering.codec import load_codec
from whippletree.store import open_store
from whippletree.tasks.config import TrailFamily
from whippletree.tasks.trail import Trail, TrailStream, write_task
from whippletree.types import Message, Rollout, RolloutSpec, Sampling, ToolSpec

HERE = Path(__file__).resolve().parent
FORMATS = HERE / "formats"
FAREWELL = "done"
MISSING = "nothing"
CONTEXT = 1_000_000  # bytes, the stand-in's tokens
ANSWER = 4000  # bytes of one answer at most
PATIENCE = 240.0  # seconds for the attempt
LOOK = 0.05  # seconds between two looks
VOLATILE = (
    (re.compile(r"(?<=Chunk ID: )[0-9a-f]{6}"), "{hex}"),
    (re.compile(r"(?<=Wall time: )[0-9]+\.[0-9]{4}"), "{seconds}"),
    (re.compile(r"(?<=Original token count: )[0-9]+"), "{tokens}"),
)


@dataclass(frozen=True)
class Seen:
    """An attempt as the gateway saw it. `commands`: each with what it printed and its exit code; the last one hands in."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    commands: tuple[tuple[str, str, int], ...]
    trail: Trail
    rollout: Rollout


def script(trail: Trail) -> tuple[tuple[str, str, int], ...]:
    """The commands that every harness is made to run, what they print, and how they end."""
    read = tuple((f"cat {name}", trail.files()[name], 0) for name in trail.names)
    missing = (f"cat {MISSING}", f"cat: {MISSING}: No such file or directory\n", 1)
    return (*read, ("echo fine", "fine\n", 0), missing, (f"submit {trail.code}", "submitted\n", 0))


async def observe(section: SourceSection, config: RunConfig, directory: Path) -> Seen:
    """Run one attempt of a source's harness on a task, answered by the script. Raises WhippletreeError."""
    family = TrailFamily(depths=(2,))
    trail = TrailStream(family).train(0)
    harness = adapter(section, config)
    commands = script(trail)
    model = write_stand_in(directory / "tokenizer")
    renderer, codec = load_renderer(model, RenderingConfig(template="tiny")), load_codec(model / "tokenizer.json")

    def answer(prompt: Sequence[int]) -> list[int]:
        text = renderer.decode(list(prompt))
        number = text.count("<|im_start|>assistant\n") - 1
        said = tool_call(harness, commands[number][0]) if number < len(commands) else FAREWELL
        return [*codec.encode(said), *renderer.stop_token_ids]

    engine = ScriptedEngine(answer, context=CONTEXT, vocabulary=512, chunk_tokens=64)
    spec = RolloutSpec(
        rollout_id="capture",
        group_id="capture",
        source=section.name,
        task_id=trail.task_id,
        task_path=str(write_task(directory / "tasks", trail, family)),
        harness=section.harness.name,
        max_attempts=1,
        sampling=Sampling(max_tokens=ANSWER),
    )
    secret = load_secret(directory / "secret")
    with open_store(directory / "store") as store:
        store.create_rollouts([spec]).result()
        gateway = Parts(store=store, engines=[engine], renderer=renderer, secret=secret)
        async with serving(GatewayConfig(), gateway) as port:
            await _control(section, config, directory, store, port)
        (rollout,) = store.rollouts()
        calls = store.calls(rollout.spec.rollout_id, rollout.attempt)
        if rollout.reward != 1.0 or not calls:
            raise HarnessError(f"{section.name} did not do what it was told: {rollout.cause or rollout}", "look at its log")
        tools = offered_tools(calls[0], {call.call_id: store.payload(call) for call in calls})
        return Seen(conversation(store, calls[-1]), tools, commands, trail, rollout)


def tool_call(harness: Harness, command: str) -> str:
    """A turn that runs a command, as the tiny model writes it."""
    call = {"name": harness.facts.shell_tool, "arguments": {harness.facts.shell_argument: command}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


async def _control(section: SourceSection, config: RunConfig, directory: Path, store: Store, port: int) -> None:
    """A controller of the run's settings until the rollout is over."""
    binding = HarnessBinding(harness=section.harness.name, settings=section.harness.settings, launch=section.harness.launch)
    spec = ControllerSpec(
        directory=str(directory),
        store=str(directory / "store"),
        secret=str(directory / "secret"),
        gateway_url=f"http://127.0.0.1:{port}",
        harnesses=(binding,),
        sandbox=config.sandbox,
        control=config.control,
    )
    stop = asyncio.Event()
    work = asyncio.create_task(controller(spec, stop))
    async with asyncio.timeout(PATIENCE):
        while not store.rollouts()[0].terminal and not work.done():
            await asyncio.wait({work}, timeout=LOOK)
    stop.set()
    await work


def adapter(section: SourceSection, config: RunConfig) -> Harness:
    """The source's harness, where the run finds it."""
    directory = config.control.harness_directory
    return load_harness(section.harness.name, Path(directory) if directory else None)


def generalise(seen: Seen, harness: Harness, around: Surroundings) -> CapturedFormat:
    """The format behind an attempt. Raises HarnessError where its results do not all have one shape."""
    first = next(number for number, message in enumerate(seen.messages) if message.role == "assistant")
    facts = (seen.trail.instruction, "{task}"), (around.date, "{date}"), (around.kernel, "{kernel}")
    results = [message.content for message in seen.messages[first:] if message.role == "tool"]
    ends: dict[bool, list[tuple[str, str]]] = {False: [], True: []}
    for content, (_, output, code) in zip(results, seen.commands, strict=False):
        ends[code != 0].append((content, output))
    return CapturedFormat(
        harness=harness.name,
        version=harness.version,
        tool=harness.facts.shell_tool,
        argument=harness.facts.shell_argument,
        opening=tuple(msgspec.structs.replace(one, content=_placed(one.content, facts)) for one in seen.messages[:first]),
        tools=seen.tools,
        shown=result_shape(ends[False]),
        failed=result_shape(ends[True]),
        farewell=FAREWELL if len(results) == len(seen.commands) else "",  # it showed what handing in printed, and asked again
    )


def result_shape(results: Sequence[tuple[str, str]]) -> str:
    """The one text with places that all of these (what the model was shown, what the command printed) come from.

    Raises HarnessError where there is none.
    """
    content, output = results[0]
    for text, place in ((output, "{output}"), (output.rstrip("\n"), "{trimmed}")):
        head, _, tail = quiet(content).rpartition(text)
        shape = f"{head}{place}{tail}"
        if all(filled(shape, output=printed, trimmed=printed.rstrip("\n")) == quiet(shown) for shown, printed in results):
            return shape
    raise HarnessError(f"results have no common shape: {[shown for shown, _ in results]}", "capture.py has to learn it")


def quiet(content: str) -> str:
    """A result with places for what differs each time."""
    for pattern, place in VOLATILE:
        content = pattern.sub(place, content)
    return content


def _placed(text: str, facts: Sequence[tuple[str, str]]) -> str:
    for fact, place in facts:
        text = text.replace(fact, place)
    return text


def capture(section: SourceSection, config: RunConfig) -> CapturedFormat:
    """Launch a source's harness and write down what it sends. Raises WhippletreeError."""
    with tempfile.TemporaryDirectory(prefix="capture-") as directory:
        seen = asyncio.run(observe(section, config, Path(directory)))
    around = Surroundings(date=datetime.date.today().isoformat(), kernel=platform.release())
    return generalise(seen, adapter(section, config), around)


def main(argv: Sequence[str] | None = None) -> int:
    """Capture every source of the run file, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="names of sources of multi.toml; none: all")
    parser.add_argument("--harnesses", default="", help="where harnesses are installed; default: as the run file says")
    parser.add_argument("--output", type=Path, default=FORMATS, help="where the files go")
    found = parser.parse_args(argv)
    overrides = [f"control.harness_directory={found.harnesses}"] if found.harnesses else []
    config = load(RunConfig, HERE / "multi.toml", overrides)
    for section in config.sources:
        if not found.sources or section.name in found.sources:
            write_json(found.output / f"{section.name}.json", capture(section, config))
            print(found.output / f"{section.name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
