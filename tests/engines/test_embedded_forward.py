"""However a sequence is cut and batched, its logits are those of a plain forward pass, and only its own cache is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_parts import VOCABULARY, Models, build
from suite import Reference

from whippletree.engines.embedded import forward
from whippletree.engines.embedded.architecture import read_architecture
from whippletree.engines.embedded.forward import Batch, Forward, KvCache, Piece
from whippletree.engines.embedded.weights import Weights, load_weights

CONTEXT = 120
TOLERANCE = 2e-5


class Bench:
    """One model over a cache of slots, driven batch by batch."""

    def __init__(self, directory: str, slots: int = 12) -> None:
        architecture = read_architecture(Path(directory))
        self.weights: Weights = load_weights(Path(directory), architecture, torch.float32, 0)
        self.cache = KvCache(architecture, slots, CONTEXT, torch.float32)
        self.forward = Forward(architecture, self.cache, torch.float32)
        self.done: dict[int, int] = {}  # slot → tokens computed

    def run(self, tokens: dict[int, list[int]], counts: dict[int, int], shared: int = 0) -> dict[int, torch.Tensor]:
        """Compute the next `counts[slot]` tokens of each slot; logprobs of each row's next token, [count, vocabulary]."""
        decoding = sorted(slot for slot, count in counts.items() if count == 1 and self.done.get(slot, 0))
        pieces = [Piece(slot, self.done.get(slot, 0), count) for slot, count in counts.items() if slot not in decoding]
        order = [Piece(slot, self.done[slot], 1) for slot in decoding] + pieces
        batch = Batch(
            ids=np.concatenate([np.array(tokens[p.slot][p.start : p.start + p.count]) for p in order]),
            positions=np.concatenate([np.arange(p.start, p.start + p.count) for p in order]),
            slots=np.concatenate([np.full(p.count, p.slot) for p in order]),
            decoding=len(decoding),
            pieces=pieces,
            shared=shared,
        )
        with torch.inference_mode():
            logits = self.forward.logits(self.weights, self.forward.run(self.weights, batch))
        rows = torch.log_softmax(logits, -1).split([p.count for p in order])
        for piece in order:
            self.done[piece.slot] = piece.start + piece.count
        return {piece.slot: row for piece, row in zip(order, rows, strict=True)}


def sequences(source: random.Random, slots: list[int], common: int = 0) -> dict[int, list[int]]:
    start = [source.randrange(VOCABULARY) for _ in range(common)]
    lengths = {slot: source.randint(common + 20, 110) for slot in slots}
    return {slot: start + [source.randrange(VOCABULARY) for _ in range(n - common)] for slot, n in lengths.items()}


def check(reference: Reference, directory: str, tokens: list[int], scores: list[float]) -> None:
    assert scores == pytest.approx(reference(directory, tokens, 1.0), abs=TOLERANCE)


@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3-moe"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pieces_and_decoding_in_any_mix_agree_with_a_plain_forward(
    models: Callable[[str], Models], reference: Reference, kind: str, seed: int
) -> None:
    directory = models(kind).old
    source = random.Random(seed)
    bench = Bench(directory)
    tokens = sequences(source, source.sample(range(12), 7))
    scores: dict[int, list[float]] = {slot: [] for slot in tokens}
    while any(bench.done.get(slot, 0) < len(ids) for slot, ids in tokens.items()):
        open_slots = [slot for slot, ids in tokens.items() if bench.done.get(slot, 0) < len(ids)]
        chosen = source.sample(open_slots, source.randint(1, len(open_slots)))
        counts = {s: min(source.choice([1, 1, 1, 7, 23]), len(tokens[s]) - bench.done.get(s, 0)) for s in chosen}
        for slot, rows in bench.run(tokens, counts).items():
            first = bench.done[slot] - len(rows)
            following = tokens[slot][first + 1 : first + 1 + len(rows)]
            scores[slot] += [float(row[token]) for row, token in zip(rows, following, strict=False)]
    for slot, ids in tokens.items():
        check(reference, directory, ids, scores[slot])


@pytest.mark.parametrize("slots", [[2, 3, 4, 5], [0, 2, 3, 5, 6], [0, 3, 6, 9, 11]], ids=["side by side", "gaps", "scattered"])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3-moe"])
def test_reading_a_common_beginning_once_changes_nothing(
    models: Callable[[str], Models], reference: Reference, kind: str, slots: list[int]
) -> None:
    directory = models(kind).old
    common = forward.SHARED_TOKENS + 3
    assert len(slots) >= forward.SHARED_ROWS
    tokens = sequences(random.Random(5), slots, common)
    bench = Bench(directory)
    bench.run(tokens, {slot: common + index for index, slot in enumerate(slots)})
    for _ in range(15):
        rows = bench.run(tokens, dict.fromkeys(slots, 1), shared=common)
        for slot in slots:
            position = bench.done[slot]
            expected = reference(directory, tokens[slot][: position + 1], 1.0)[-1]
            assert float(rows[slot][0, tokens[slot][position]]) == pytest.approx(expected, abs=TOLERANCE)


def test_only_the_batchs_own_positions_are_written(models: Callable[[str], Models]) -> None:
    bench = Bench(models("qwen3").old)
    tokens = sequences(random.Random(7), [1, 4, 8])
    bench.run(tokens, {1: 12, 4: 5})
    before = bench.cache.data.clone()
    bench.run(tokens, {1: 1, 8: 6, 4: 3})
    changed = (bench.cache.data != before).any(dim=5).any(dim=3).any(dim=1).any(dim=0)  # [slots, context]
    assert changed.nonzero().tolist() == [[1, 12], [4, 5], [4, 6], [4, 7], *([8, p] for p in range(6))]


def test_a_copied_prefix_continues_like_a_computed_one(models: Callable[[str], Models], reference: Reference) -> None:
    directory = models("llama").old
    bench = Bench(directory)
    tokens = sequences(random.Random(8), [3, 9], common=30)
    bench.run(tokens, {3: 40})
    bench.cache.copy(3, 9, 0, 30)
    bench.done[9] = 30
    rows = bench.run(tokens, {9: len(tokens[9]) - 30})[9]
    scores = [float(row[token]) for row, token in zip(rows, tokens[9][31:], strict=False)]
    assert scores == pytest.approx(reference(directory, tokens[9], 1.0)[30:], abs=TOLERANCE)


@pytest.mark.parametrize("rows", [1, 2, 8, 9])
def test_the_head_of_a_large_vocabulary_gives_the_same_logits(tmp_path: Path, rows: int) -> None:
    directory = build(tmp_path, "qwen3", 3, vocab_size=forward.TALL_VOCABULARY, num_hidden_layers=1)
    bench = Bench(directory)
    hidden = torch.randn(rows, 48)
    logits = bench.forward.logits(bench.weights, hidden)
    alone = torch.cat([bench.forward.logits(bench.weights, hidden[row : row + 1]) for row in range(rows)])
    assert logits.is_contiguous()
    torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)
