"""The engine's loop body: admit, plan, compute, sample. One thread calls it; it knows neither HTTP nor threads.

Invariants (tests/engines/test_embedded_core.py):
- requests are admitted in order of arrival, and each gets exactly one end: a finish reason or an error;
- after a weight swap every further token, of running requests too, is computed from scratch under the new weights;
- requests with a common beginning that arrive together compute it once;
- a step computes at most `prefill_tokens` prompt tokens beside one token of every decoding request.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt
import torch

from whippletree.engines.embedded.architecture import Architecture
from whippletree.engines.embedded.forward import SHARED_ROWS, Batch, Forward, KvCache, Piece
from whippletree.engines.embedded.planning import share_budget
from whippletree.engines.embedded.sampling import sample
from whippletree.engines.embedded.sequence import Sequence
from whippletree.engines.embedded.slots import SlotTable
from whippletree.engines.embedded.weights import Weights
from whippletree.errors import EngineError


class EngineCore:
    """Continuous batching over slots. Not thread-safe."""

    def __init__(
        self, architecture: Architecture, weights: Weights, *, slots: int, context: int, prefill_tokens: int, dtype: torch.dtype
    ) -> None:
        self.context = context
        self.weights = weights
        self._prefill_tokens = prefill_tokens
        self._cache = KvCache(architecture, slots, context, dtype)
        self._forward = Forward(architecture, self._cache, dtype)
        self._table = SlotTable(slots, context)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in order of arrival
        self._shared: tuple[list[Sequence], int] = ([], 0)  # decoding requests of the last step, tokens they all begin with

    @property
    def running(self) -> int:
        """Requests that own a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests without a slot yet."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self._running or self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a request. Its prompt must be shorter than the context and within the vocabulary."""
        self._waiting.append(sequence)

    def abort(self, request_id: str) -> Sequence | None:
        """End a request with finish reason "abort"; None when there is no such request."""
        for sequence in (*self._running, *self._waiting):
            if sequence.request_id == request_id:
                self.end(sequence)
                return sequence
        return None

    def end(self, sequence: Sequence) -> None:
        """End a request that was submitted and is not done, with finish reason "abort"."""
        if sequence.slot >= 0:
            self._running.remove(sequence)
            self._table.release(sequence.slot)
        else:
            self._waiting.remove(sequence)
        sequence.finish_reason = "abort"

    def drain(self) -> list[Sequence]:
        """Forget all requests, unfinished as they are, and return them."""
        unfinished = [*self._running, *self._waiting]
        self._running.clear()
        self._waiting.clear()
        return unfinished

    def swap(self, weights: Weights) -> None:
        """Serve other weights from the next step on. Running requests compute prompt and answer so far again."""
        self.weights = weights
        self._table.invalidate()
        for sequence in self._running:
            sequence.computed = 0
            sequence.prompt_logprobs.clear()
            wait = None if sequence.score_prompt else self._table.replan(sequence.slot, sequence.ids())
            self._wait(sequence, *(wait or (-1, 0)))

    def step(self) -> list[Sequence]:
        """Compute once. Returns the requests that got a token or ended."""
        with torch.inference_mode():
            self._admit()
            decoding, pieces = self._plan()
            if not decoding and not pieces:
                return []
            batch = self._batch(decoding, pieces)
            hidden = self._forward.run(self.weights, batch)
            self._record(decoding, pieces, batch)
            return self._sample(decoding, pieces, hidden)

    # --- admission and planning ---

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            placement = self._table.place(sequence.ids(), reuse=not sequence.score_prompt)
            if placement is None:
                return
            self._waiting.popleft()
            if placement.source != placement.slot:
                self._cache.copy(placement.source, placement.slot, 0, placement.reused)
            sequence.slot = placement.slot
            sequence.computed = sequence.cached = placement.reused
            self._wait(sequence, placement.wait_for, placement.wait_until)
            self._running.append(sequence)

    def _wait(self, sequence: Sequence, slot: int, until: int) -> None:
        """Let a request wait until the owner of `slot` has computed `until` tokens; slot -1: do not wait."""
        owner = next((other for other in self._running if other.slot == slot), None)
        sequence.wait_for, sequence.wait_until = owner, until

    def _plan(self) -> tuple[list[Sequence], list[tuple[Sequence, Piece]]]:
        """Who decodes (in slot order) and which prompt pieces are computed now."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in self._running:
            if sequence.wait_for is not None and not self._take_over(sequence, sequence.wait_for):
                continue
            if sequence.pending == 1 and not sequence.score_prompt:
                decoding.append(sequence)
            else:
                prefilling.append(sequence)
        decoding.sort(key=_slot)
        counts = share_budget([sequence.pending for sequence in prefilling], self._prefill_tokens)
        pieces = [
            (sequence, Piece(sequence.slot, sequence.computed, count))
            for sequence, count in zip(prefilling, counts, strict=True)
            if count
        ]
        return decoding, pieces

    def _take_over(self, sequence: Sequence, owner: Sequence) -> bool:
        """Copy the awaited prefix once its owner has computed it, or what there is of it once the owner has ended."""
        ready = self._table.common(owner.slot, sequence.ids())
        if ready < sequence.wait_until and not owner.done:
            return False
        if ready > sequence.computed:
            self._cache.copy(owner.slot, sequence.slot, sequence.computed, ready)
            sequence.computed = ready
            if not sequence.sampled:
                sequence.cached = ready
            self._table.advance(sequence.slot, ready)
        sequence.wait_for = None
        return True

    def _batch(self, decoding: list[Sequence], pieces: list[tuple[Sequence, Piece]]) -> Batch:
        ids = [np.array([sequence.tokens[-1] for sequence in decoding], dtype=np.int64)]
        positions = [np.array([sequence.computed for sequence in decoding], dtype=np.int64)]
        slots = [np.array([sequence.slot for sequence in decoding], dtype=np.int64)]
        for sequence, piece in pieces:
            stop = piece.start + piece.count
            ids.append(np.array(sequence.tokens[piece.start : stop], dtype=np.int64))
            positions.append(np.arange(piece.start, stop, dtype=np.int64))
            slots.append(np.full(piece.count, piece.slot, dtype=np.int64))
        return Batch(
            ids=np.concatenate(ids),
            positions=np.concatenate(positions),
            slots=np.concatenate(slots),
            decoding=len(decoding),
            pieces=[piece for _, piece in pieces],
            shared=self._shared_by(decoding, slots[0]),
        )

    def _shared_by(self, decoding: list[Sequence], slots: npt.NDArray[np.int64]) -> int:
        """Tokens with which all decoding requests begin; compared anew only when other requests decode."""
        if len(decoding) < SHARED_ROWS:
            return 0
        if decoding != self._shared[0]:
            self._shared = (decoding, self._table.shared(slots))
        return self._shared[1]

    # --- results ---

    def _record(self, decoding: list[Sequence], pieces: list[tuple[Sequence, Piece]], batch: Batch) -> None:
        """Note what is in the cache now."""
        rows = batch.decoding
        if rows:
            self._table.append(batch.slots[:rows], batch.positions[:rows], batch.ids[:rows])
        for sequence in decoding:
            sequence.computed += 1
        for sequence, piece in pieces:
            sequence.computed += piece.count
            self._table.advance(sequence.slot, sequence.computed)

    def _sample(self, decoding: list[Sequence], pieces: list[tuple[Sequence, Piece]], hidden: torch.Tensor) -> list[Sequence]:
        """Sample for every request that has no known token left to compute; score prompts that asked for it."""
        chosen = list(decoding)
        rows = list(range(len(decoding)))
        row = len(decoding)
        for sequence, piece in pieces:
            if sequence.score_prompt and piece.start < sequence.prompt_length - 1:
                self._score(sequence, piece, hidden[row : row + piece.count])
            row += piece.count
            if not sequence.pending:
                chosen.append(sequence)
                rows.append(row - 1)
        if not chosen:
            return []
        if len(rows) < len(hidden):
            hidden = hidden.index_select(0, torch.tensor(rows))
        logits = self._forward.logits(self.weights, hidden)
        tokens, logprobs = sample(logits, [s.sampling for s in chosen], [s.uniforms.random() for s in chosen])
        for sequence, token, logprob in zip(chosen, tokens, logprobs, strict=True):
            if math.isfinite(logprob):
                sequence.add(token, logprob, self.weights.version, self.context)
            else:
                sequence.error = EngineError(
                    f"request {sequence.request_id}: policy version {self.weights.version} gives logits that are not finite",
                    "load the last good weights; look at the update that produced these",
                )
            if sequence.done:
                if self._cache.experts.numel():
                    sequence.experts = self._cache.experts[sequence.slot, : sequence.computed].numpy().copy()
                self._table.release(sequence.slot)
        if any(sequence.done for sequence in chosen):
            self._running = [sequence for sequence in self._running if not sequence.done]
        return chosen

    def _score(self, sequence: Sequence, piece: Piece, hidden: torch.Tensor) -> None:
        """Logprobs at temperature 1 of the prompt tokens that follow this piece's tokens."""
        following = sequence.tokens[piece.start + 1 : min(piece.start + piece.count, sequence.prompt_length - 1) + 1]
        logits = self._forward.logits(self.weights, hidden[: len(following)])
        targets = torch.tensor(following)[:, None]
        sequence.prompt_logprobs.extend(torch.log_softmax(logits, -1).gather(1, targets)[:, 0].tolist())


def _slot(sequence: Sequence) -> int:
    return sequence.slot
