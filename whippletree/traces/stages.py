"""How many calls and tokens come through each stage between a harness and the learner, and why the rest do not.

Invariants (tests/traces/test_traces_funnel.py):
- each stage counts no more calls than the stage before it, and received = trained + the calls that `excluded` counts;
- the token counts are those of the samples that `build_samples` makes;
- where a stage counts nothing, `first_zero` says which one and why; otherwise it is "".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from whippletree.traces.tree import Node, Trace
from whippletree.types import Struct


class Funnel(Struct):
    """Counts of one trace, or of many (`add`). `linked`: calls whose prompt continues an earlier call, of those captured.

    Example: Funnel(received=3, captured=3, delivered=3, trained=3, linked=2, roots=1, samples=1, prompt_tokens=60,
                    sampled_tokens=24, trained_tokens=24, sample_tokens=90, breaks={"first": 1})
    """

    received: int = 0
    captured: int = 0
    sampled: int = 0
    delivered: int = 0
    trained: int = 0
    linked: int = 0
    roots: int = 0
    samples: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    sample_tokens: int = 0
    breaks: dict[str, int] = {}
    excluded: dict[str, int] = {}
    first_zero: str = ""


STAGES = {
    "received": "no model request reached the gateway: the harness did not start, or was not pointed at it",
    "captured": "no call left ids: every request failed before the engine answered",
    "sampled": "the engine sampled nothing in any call",
    "delivered": "no reply reached the harness whole: it disconnected, or its time was over",
    "trained": "no call can be trained",
}
COUNTED = tuple(name for name in Funnel.__struct_fields__ if name not in ("breaks", "excluded", "first_zero"))


def funnel(trace: Trace) -> Funnel:
    """Count one trace."""
    nodes = trace.nodes
    captured = [node for node in nodes if node.excluded != "no payload"]
    sampled = [node for node in captured if len(node.sampled_ids)]
    trained = [node for node in nodes if node.trainable]
    paths = trace.paths()
    return _explained(
        Funnel(
            received=len(nodes),
            captured=len(captured),
            sampled=len(sampled),
            delivered=sum(node.delivered for node in sampled),
            trained=len(trained),
            linked=sum(bool(node.parent) for node in captured),
            roots=sum(not node.parent for node in captured),
            samples=len(paths),
            prompt_tokens=sum(len(node.prompt_ids) for node in nodes),
            sampled_tokens=_tokens(nodes),
            trained_tokens=_tokens(trained),
            sample_tokens=sum(len(path[-1].prompt_ids) + len(path[-1].sampled_ids) for path in paths),
            breaks=dict(Counter(node.call.prefix_break for node in nodes if node.call.prefix_break)),
            excluded=dict(Counter(node.excluded for node in nodes if node.excluded)),
        )
    )


def add(funnels: Iterable[Funnel]) -> Funnel:
    """The sum of several funnels, explained anew."""
    counts: Counter[str] = Counter()
    breaks: Counter[str] = Counter()
    excluded: Counter[str] = Counter()
    for one in funnels:
        counts.update({name: getattr(one, name) for name in COUNTED})
        breaks.update(one.breaks)
        excluded.update(one.excluded)
    return _explained(msgspec.convert({**counts, "breaks": dict(breaks), "excluded": dict(excluded)}, Funnel))


def _tokens(nodes: Sequence[Node]) -> int:
    return sum(len(node.sampled_ids) for node in nodes)


def _explained(counts: Funnel) -> Funnel:
    """The same counts with the first stage that counts nothing, in words."""
    zero = next((stage for stage in STAGES if getattr(counts, stage) == 0), "")
    if not zero:
        return counts
    reasons = ", ".join(f"{reason} ({number})" for reason, number in sorted(counts.excluded.items()))
    text = f"{zero} = 0: {STAGES[zero]}" + (f"; left out: {reasons}" if reasons else "")
    return msgspec.structs.replace(counts, first_zero=text)
