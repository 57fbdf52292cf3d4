"""Training sequences of a trace: its root-to-leaf paths.

    path A ─ B ─ C:   [prompt A | sampled A | new in B | sampled B | new in C | sampled C]
    trained:                      ─────────              ─────────              ─────────

Invariants (tests/traces/test_traces_samples.py):
- exactly the sampled tokens of trainable calls are trained, each once per rollout, under the prompt that was fed: where paths
  share calls, the first path trains them and they are context in the others;
- all columns have one length; where `trained` is set, the logprob is the sampler's and the version is not negative.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from whippletree.traces.tree import Node, Trace
from whippletree.types import Int32, RolloutSpec, Sample


def build_samples(trace: Trace, spec: RolloutSpec) -> list[Sample]:
    """One sample per root-to-leaf path, by index of the leaf. A rollout without a trainable call has none."""
    taken: set[str] = set()
    samples: list[Sample] = []
    for path in trace.paths():
        samples.append(_sample(path, taken, spec))
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
