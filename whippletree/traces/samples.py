"""Training sequences of a trace: its root-to-leaf paths.

    path A ─ B ─ C:   [prompt A | sampled A | new in B | sampled B | new in C | sampled C]
    trained:                      ─────────              ─────────              ─────────

Invariants (tests/traces/test_traces_samples.py):
- exactly the sampled tokens of trainable calls are trained, each once per rollout, under the prompt that was fed: where paths
  share calls, the first path trains them and they are context in the others;
- all columns have one length; where `trained` is set, the logprob is the sampler's and the version is not negative;
- a token's routing is that of the first call of the path that computed it, so a sampled one's is that of its own call (of the
  next one, for the last token that a call sampled, which it does not compute).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from whippletree.errors import AlignmentError
from whippletree.traces.tree import Node, Trace
from whippletree.types import Int16, Int32, RolloutSpec, Sample


def build_samples(trace: Trace, spec: RolloutSpec, *, routing: bool = False) -> list[Sample]:
    """One sample per root-to-leaf path, by index of the leaf. A rollout without a trainable call has none. `routing`: with the
    experts that tokens went to. Raises AlignmentError where calls of a path have recorded other models' experts."""
    taken: set[str] = set()
    samples: list[Sample] = []
    for path in trace.paths():
        sample = _sample(path, taken, spec)
        samples.append(msgspec.structs.replace(sample, routing=_routing(path, len(sample.token_ids))) if routing else sample)
        taken.update(node.call_id for node in path)
    return samples


def _sample(path: tuple[Node, ...], taken: set[str], spec: RolloutSpec) -> Sample:
    """The sequence of one path; calls in `taken` are context."""
    leaf = path[-1]
    token_ids = leaf.full_ids
    trained = np.zeros(len(token_ids), np.bool_)
    logprobs = np.zeros(len(token_ids), np.float32)
    versions = np.full(len(token_ids), -1, np.int32)
    for node in path:
        where = slice(node.prompt_length, node.prompt_length + len(node.sampled_ids))
        if len(node.logprobs):
            logprobs[where] = node.logprobs
        if node.trainable and node.call_id not in taken:
            trained[where] = True
            versions[where] = node.versions
    return Sample(
        sample_id=f"{spec.rollout_id}.{leaf.call.index}",
        rollout_id=spec.rollout_id,
        group_id=spec.group_id,
        call_ids=tuple(node.call_id for node in path),
        token_ids=token_ids,
        trained=trained,
        logprobs=logprobs,
        versions=versions,
    )


def call_numbers(sample: Sample, nodes: Mapping[str, Node]) -> Int32:
    """Place on the sample's path of the call that sampled each of its trained tokens. Shape [trained]."""
    number = np.full(len(sample.token_ids), -1, np.int32)
    for place, call_id in enumerate(sample.call_ids):
        node = nodes[call_id]
        number[node.prompt_length : node.prompt_length + len(node.sampled_ids)] = place
    return number[sample.trained]


def _routing(path: tuple[Node, ...], length: int) -> Int16 | None:
    """Which experts each token of a path went to, [length, layers, k]; None where no call has recorded any."""
    found: Int16 | None = None
    for node in reversed(path):  # of calls that computed the same token, the first has the last word
        if node.experts is None:
            continue
        tokens, layers, used = node.experts.shape
        if found is None:
            found = np.full((length, layers, used), -1, np.int16)
        elif found.shape[1:] != (layers, used):
            raise AlignmentError(
                f"call {node.call_id} recorded {layers} layers of {used} experts, another of its path {found.shape[1:]}",
                "calls of one rollout must come from one model",
            )
        recorded = np.frombuffer(node.experts.data, dtype="<i2").reshape(node.experts.shape)
        found[node.experts.start : node.experts.start + tokens] = recorded
    return found
