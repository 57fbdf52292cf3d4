"""The forward pass: any mix of decoding rows and prompt pieces in one batch, over a KV cache of slots.

Tokens of all requests are packed into one row axis [n]; only attention looks at requests one by one. Decoding rows
(one token per request) come first and share one attention call; each prompt piece has its own. Where all decoding rows
begin with the same tokens, attention reads that beginning from one slot for all of them.

Invariants (tests/engines/test_embedded_forward.py):
- a token's logits equal those of a plain full forward of its sequence, however it was cut into pieces and batched, and
  whether or not a common beginning was read once;
- a slot's cache is written only at the batch's own (slot, position) pairs;
- of a mixture of experts, the cache has which experts each of its tokens went to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from whippletree.engines.embedded.architecture import Architecture
from whippletree.engines.embedded.weights import ExpertWeights, LayerWeights, MlpWeights, Weights

Int64 = npt.NDArray[np.int64]

SHARED_ROWS = 4
"""Decoding rows from which on a common beginning is read once for all; for fewer the extra operations cost more."""

SHARED_TOKENS = 48
"""Tokens that such a beginning must have."""

TALL_VOCABULARY = 8192
"""Vocabulary from which on the head is multiplied the other way round for few rows: it is then read once, without packing."""

TALL_ROWS = range(2, 9)
"""Those few rows; measured 1.3 to 4 times faster than the usual way, which wins again from 16 rows on."""


@dataclass(frozen=True)
class Piece:
    """`count` consecutive prompt tokens of the request in `slot`, at positions start, start + 1, ..."""

    slot: int
    start: int
    count: int


@dataclass(frozen=True)
class Batch:
    """Rows of one step. `ids`, `positions`, `slots` have shape [n]: first `decoding` rows of one token each, in ascending
    order of their slots, then the rows of each piece in order. `shared`: tokens with which all decoding sequences begin."""

    ids: Int64
    positions: Int64
    slots: Int64
    decoding: int
    pieces: Sequence[Piece] = ()
    shared: int = 0


class KvCache:
    """Keys and values of all slots: [layers, 2 (keys, values), slots, kv_heads, context, head_dim]; and of a mixture of experts
    the choices of each token, int16 [slots, context, layers, experts used]."""

    def __init__(self, architecture: Architecture, slots: int, context: int, dtype: torch.dtype) -> None:
        a = architecture
        # Zeros, not empty: masked positions are multiplied by zero and must be finite. The pages are only touched in use.
        self.data = torch.zeros(a.layers, 2, slots, a.kv_heads, context, a.head_dim, dtype=dtype)
        self.experts = torch.zeros(slots, context if a.experts else 0, a.layers, a.experts_used, dtype=torch.int16)
        self.context = context
        self.slots = slots

    def copy(self, source: int, target: int, start: int, stop: int) -> None:
        """Copy positions start..stop-1 of one slot to another."""
        self.data[:, :, target, :, start:stop] = self.data[:, :, source, :, start:stop]
        self.experts[target, start:stop] = self.experts[source, start:stop]


@dataclass(frozen=True)
class _DecodePlan:
    """How the decoding rows attend: to positions start..length-1 of slots low..high-1 (a view), or of the slots in `gather`,
    and to positions 0..start-1 of slot `low` for all. `scatter` holds the rows' places in the view where it has more slots
    than there are rows. `mask` is additive, [slots, 1, 1, length - start]."""

    rows: int
    start: int
    length: int
    low: int
    high: int
    gather: torch.Tensor | None
    scatter: torch.Tensor | None
    mask: torch.Tensor | None


class Forward:
    """Computes batches for one architecture over one cache."""

    def __init__(self, architecture: Architecture, cache: KvCache, dtype: torch.dtype) -> None:
        self._a = architecture
        self._cache = cache
        self._dtype = dtype
        half = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32) / architecture.head_dim
        angles = torch.outer(torch.arange(cache.context, dtype=torch.float32), 1.0 / architecture.rope_theta**half)
        self._rotation = torch.complex(angles.cos(), angles.sin())  # [context, head_dim / 2]
        self._range = torch.arange(cache.context)
        self._scale = architecture.head_dim**-0.5
        heads = np.arange(architecture.kv_heads, dtype=np.int64) * cache.context
        values = cache.slots * architecture.kv_heads * cache.context
        self._head_rows = np.concatenate([heads, heads + values])  # cache rows of one token's keys and values, [2 · kv_heads]
        self._epsilons = {
            size: torch.tensor(math.sqrt(size * architecture.norm_epsilon))
            for size in (architecture.hidden, architecture.head_dim)
        }

    def run(self, weights: Weights, batch: Batch) -> torch.Tensor:
        """Compute every row, write its keys and values, and return the hidden states after the last block: [n, hidden]."""
        a = self._a
        positions = torch.from_numpy(batch.positions)
        rotation = self._rotation.index_select(0, positions).unsqueeze(1)
        row_stride = a.kv_heads * self._cache.context
        targets = (batch.slots * row_stride + batch.positions)[:, None] + self._head_rows
        write = torch.from_numpy(targets.reshape(-1))
        plan = self._plan_decoding(batch) if batch.decoding else None
        masks = [self._piece_mask(piece) for piece in batch.pieces]
        x = F.embedding(torch.from_numpy(batch.ids), weights.embedding)
        flat = self._cache.data.view(a.layers, -1, a.head_dim)
        for index, layer in enumerate(weights.layers):
            queries, kv = self._queries_and_kv(layer, x, rotation)
            flat[index].index_copy_(0, write, kv.view(-1, a.head_dim))
            x.addmm_(self._attention(index, queries, plan, batch, masks), layer.out)
            normed = self._norm(x, layer.mlp_norm)
            if isinstance(layer.mlp, MlpWeights):
                _add_mlp(x, normed, layer.mlp)
            else:
                chosen = self._add_experts(x, normed, layer.mlp)
                self._cache.experts[batch.slots, batch.positions, index] = chosen.to(torch.int16)
        return x

    def _add_experts(self, x: torch.Tensor, normed: torch.Tensor, layer: ExpertWeights) -> torch.Tensor:
        """Add each token's experts, by their weights, to `x` [n, hidden]; the choices, [n, experts used]."""
        probabilities = F.linear(normed, layer.router).float().softmax(1)
        shares, chosen = probabilities.topk(self._a.experts_used, 1)
        if self._a.experts_normed:
            shares /= shares.sum(1, keepdim=True)
        shares = shares.to(x.dtype)
        for expert in sorted(set(chosen.flatten().tolist())):
            rows, place = torch.where(chosen == expert)
            part = torch.zeros_like(normed[rows])
            _add_mlp(part, normed[rows], layer.experts[expert])
            x.index_add_(0, rows, part * shares[rows, place, None])
        return chosen

    def logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of these hidden states [n, hidden] in float32: [n, vocabulary]."""
        normed = self._norm(hidden, weights.norm)
        if len(hidden) in TALL_ROWS and self._a.vocabulary >= TALL_VOCABULARY:
            return weights.head.mm(normed.t()).t().float().contiguous()
        return F.linear(normed, weights.head).float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm over the last axis: x / √(|x|² + size · ε) · (√size · w); `weight` is √size · w in float32.

        Four operations instead of the dozen of F.rms_norm, which matters for small models.
        """
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return x.div(torch.hypot(length, self._epsilons[x.shape[-1]])).mul_(weight).to(self._dtype)

    def _queries_and_kv(
        self, layer: LayerWeights, x: torch.Tensor, rotation: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries [n, heads, head_dim] and what goes into the cache [n, 2 · kv_heads, head_dim]."""
        a = self._a
        qkv = F.linear(self._norm(x, layer.attention_norm), layer.qkv).view(len(x), a.heads + 2 * a.kv_heads, a.head_dim)
        qk, values = qkv.tensor_split([a.heads + a.kv_heads], 1)
        if layer.qk_norm is not None:
            qk = self._norm(qk, layer.qk_norm)
        pairs = torch.view_as_complex(qk.float().reshape(len(x), -1, a.head_dim // 2, 2))
        rotated = torch.view_as_real(pairs * rotation).flatten(2).to(self._dtype)
        return rotated[:, : a.heads], torch.cat((rotated[:, a.heads :], values), 1)

    def _attention(
        self, index: int, queries: torch.Tensor, plan: _DecodePlan | None, batch: Batch, masks: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        """Attention output of all rows: [n, heads · head_dim]."""
        cache = self._cache.data[index]
        parts = [self._attend_decoding(cache, queries, plan)] if plan is not None else []
        row = batch.decoding
        for piece, mask in zip(batch.pieces, masks, strict=True):
            parts.append(self._attend_piece(cache, queries[row : row + piece.count], piece, mask))
            row += piece.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend_decoding(self, cache: torch.Tensor, queries: torch.Tensor, plan: _DecodePlan) -> torch.Tensor:
        """Attention output of the decoding rows: [rows, heads · head_dim].

        Query heads that share a key head lie along the time axis, so no key is repeated in memory. One softmax spans the
        common beginning, read from one slot for all rows, and each row's own rest. Plain products were measured to be
        faster here than the fused kernel, whose blocks are made for many queries.
        """
        q = queries[: plan.rows].reshape(plan.rows, self._a.kv_heads, -1, self._a.head_dim) * self._scale
        if plan.scatter is not None:
            q = q.new_zeros(plan.high - plan.low, *q.shape[1:]).index_copy_(0, plan.scatter, q)
        if plan.gather is not None:
            own = cache[:, :, :, plan.start : plan.length].index_select(1, plan.gather)
        else:
            own = cache[:, plan.low : plan.high, :, plan.start : plan.length]
        keys, values = own.unbind()
        scores = torch.matmul(q, keys.transpose(2, 3))
        if plan.mask is not None:
            scores.add_(plan.mask)
        if plan.start:
            common = cache[:, plan.low, :, : plan.start]
            scores = torch.cat((_per_head(q, common[0].transpose(1, 2)), scores), 3)
        weights = scores.float().softmax(3).to(q.dtype)
        out = torch.matmul(weights[..., plan.start :], values)
        if plan.start:
            out.add_(_per_head(weights[..., : plan.start], common[1]))
        if plan.scatter is not None:
            out = out.index_select(0, plan.scatter)
        return out.reshape(plan.rows, -1)

    def _attend_piece(
        self, cache: torch.Tensor, queries: torch.Tensor, piece: Piece, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """One request: its key heads take the place of the batch axis."""
        a = self._a
        groups = a.heads // a.kv_heads
        q = queries.view(piece.count, a.kv_heads, groups, a.head_dim).permute(1, 2, 0, 3)
        kv = cache[:, piece.slot, :, : piece.start + piece.count].unsqueeze(2).expand(-1, -1, groups, -1, -1)
        out = F.scaled_dot_product_attention(q, kv[0], kv[1], attn_mask=mask, is_causal=mask is None)
        return out.permute(2, 0, 1, 3).reshape(piece.count, -1)

    def _piece_mask(self, piece: Piece) -> torch.Tensor | None:
        """Additive causal mask [count, start + count]; None where the plain causal one does."""
        if piece.start == 0:
            return None
        shape = (piece.count, piece.start + piece.count)
        return torch.full(shape, -math.inf, dtype=self._dtype).triu_(piece.start + 1)

    def _plan_decoding(self, batch: Batch) -> _DecodePlan:
        rows = batch.decoding
        slots, positions = batch.slots[:rows], batch.positions[:rows]
        low, high, length = int(slots[0]), int(slots[-1]) + 1, int(positions.max()) + 1
        start = batch.shared if rows >= SHARED_ROWS and batch.shared >= SHARED_TOKENS else 0
        gather = scatter = None
        visible = positions - start
        if high - low > 2 * rows:
            gather = torch.from_numpy(slots)
        elif high - low > rows:
            scatter = torch.from_numpy(slots - low)
            visible = np.zeros(high - low, dtype=np.int64)
            visible[slots - low] = positions - start
        mask = None
        if int(visible.min()) + 1 < length - start:
            hidden = self._range[: length - start] > torch.from_numpy(visible)[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -math.inf)[:, None, None]
        return _DecodePlan(rows, start, length, low, high, gather, scatter, mask)


def _add_mlp(x: torch.Tensor, normed: torch.Tensor, layer: MlpWeights) -> None:
    """Add a feed-forward layer of `normed` to `x`, both [n, hidden]."""
    gate, up = F.linear(normed, layer.gate_up).chunk(2, 1)
    x.addmm_(F.silu(gate).mul_(up), layer.down)


def _per_head(rows: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """rows [n, kv_heads, groups, a] times one matrix per key head [kv_heads, a, b]: [n, kv_heads, groups, b]."""
    n, kv_heads, groups, inner = rows.shape
    flat = rows.transpose(0, 1).reshape(kv_heads, n * groups, inner)
    return torch.bmm(flat, matrix).view(kv_heads, n, groups, -1).transpose(0, 1)
