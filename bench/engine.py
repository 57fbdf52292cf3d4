"""Tokens per second of the embedded engine against transformers' generate(), on an agent-like load, in one run.

    python bench/engine.py [--smollm2 DIR] [--batch 1 8 32] [--turns 4] [--threads 1]

The load: B conversations whose prompts share their first 200 tokens (a harness's fixed prompt) and differ in the next 48 to 64
(the task); each turn samples 40 tokens and then 30 tokens come back (a command's output), four turns. transformers gets each
turn as one left-padded batch and generates with its KV cache, without scores, top-k or other processors; the engine gets the
same prompts through its own scheduler and also returns logprobs. Both run in this process on the same number of threads, turn
about; the numbers are medians. With one thread, time is CPU time of the process, so other load on the machine matters less.

The last line is JSON: the ratio of sampled tokens per second, engine over transformers, per batch size.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.core import EngineCore
from whippletree.engines.embedded.sequence import Sequence
from whippletree.engines.embedded.weights import load_weights
from whippletree.types import Sampling

SHARED, ANSWER, OBSERVATION = 200, 40, 30
Conversations = list[list[int]]


def conversations(batch: int, vocabulary: int, seed: int) -> Conversations:
    """First prompts: one shared beginning, then a task of 48 to 64 tokens each."""
    source = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [source.randrange(4, vocabulary) for _ in range(count)]

    shared = ids(SHARED)
    return [[*shared, *ids(48 + source.randrange(17))] for _ in range(batch)]


def observation(vocabulary: int, seed: int) -> list[int]:
    """What comes back after a turn."""
    source = random.Random(seed)
    return [source.randrange(4, vocabulary) for _ in range(OBSERVATION)]


def with_transformers(model: Any, talks: Conversations, turns: int) -> None:
    """Play all turns with generate(), one left-padded batch per turn."""
    for turn in range(turns):
        width = max(map(len, talks))
        ids = torch.tensor([[0] * (width - len(talk)) + talk for talk in talks])
        mask = torch.tensor([[0] * (width - len(talk)) + [1] * len(talk) for talk in talks])
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=ANSWER,
            min_new_tokens=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        for row, talk in enumerate(talks):
            talk.extend(out[row, width:].tolist())
            talk.extend(observation(model.config.vocab_size, turn * 1000 + row))


def with_engine(core: EngineCore, vocabulary: int, talks: Conversations, turns: int, run: int) -> None:
    """Play all turns with the engine; a turn's requests arrive together, as they do for transformers."""
    for turn in range(turns):
        sequences = [
            Sequence(
                request_id=f"{run}-{turn}-{row}",
                prompt_length=len(talk),
                tokens=list(talk),
                sampling=Sampling(temperature=1.0, max_tokens=ANSWER),
                stop_ids=frozenset(),
                uniforms=random.Random(row),
            )
            for row, talk in enumerate(talks)
        ]
        for sequence in sequences:
            core.submit(sequence)
        while core.busy:
            core.step()
        for row, (talk, sequence) in enumerate(zip(talks, sequences, strict=True)):
            talk[:] = [*sequence.tokens, *observation(vocabulary, turn * 1000 + row)]


def measure(directory: Path, batches: list[int], turns: int, threads: int, repeats: int) -> dict[str, float]:
    """Ratio per batch size, printed with the absolute numbers as they come."""
    architecture = read_architecture(directory)
    weights = load_weights(directory, architecture, torch.float32, 0)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    context = SHARED + 64 + turns * (ANSWER + OBSERVATION)
    clock = time.process_time if threads == 1 else time.perf_counter
    ratios: dict[str, float] = {}
    for batch in batches:
        times: dict[str, list[float]] = {"transformers": [], "engine": []}

        def timed(name: str, play: Callable[[], None], times: dict[str, list[float]] = times) -> None:
            start = clock()
            play()
            times[name].append(clock() - start)

        for run in range(repeats + 1):  # the first is a warm-up, unless it is the only one
            talks = conversations(batch, architecture.vocabulary, run)
            timed("transformers", lambda talks=talks: with_transformers(model, [list(talk) for talk in talks], turns))  # type: ignore[misc]
            core = EngineCore(
                architecture, weights, slots=max(batch, 2), context=context, prefill_tokens=512, dtype=torch.float32
            )
            timed(
                "engine", lambda core=core, talks=talks, run=run: with_engine(core, architecture.vocabulary, talks, turns, run)
            )  # type: ignore[misc]
        tokens = batch * turns * ANSWER
        speeds = {name: tokens / statistics.median(values[1:] or values) for name, values in times.items()}
        ratios[f"b{batch}"] = round(speeds["engine"] / speeds["transformers"], 2)
        print(
            f"  batch {batch:3d}: transformers {speeds['transformers']:8.0f} tokens/s, engine {speeds['engine']:8.0f} tokens/s,"
            f" ratio {ratios[f'b{batch}']:.2f}",
            flush=True,
        )
    return ratios


def tiny(directory: Path) -> Path:
    """A random Qwen3 of 0.8 M parameters."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=768,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path, help="directory of SmolLM2-135M in Hugging Face layout, to measure it too")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, {options.threads} thread(s), float32")
    report: dict[str, Any] = {"bench": "engine"}
    print("tiny (Qwen3, 0.8 M parameters)")
    with tempfile.TemporaryDirectory() as folder:
        report["tiny"] = measure(tiny(Path(folder)), options.batch, options.turns, options.threads, options.repeats)
    if options.smollm2:
        print("SmolLM2-135M")
        report["smollm2"] = measure(options.smollm2, options.batch, options.turns, options.threads, 0)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
