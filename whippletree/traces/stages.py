"""How many calls and tokens come through each stage between a harness and the learner, and why the rest do not.

Invariants (tests/traces/test_traces_funnel.py):
- each stage counts no more calls than the stage before it, and received = trained + the calls that `excluded` counts;
- the token counts are those of the samples that `build_samples` makes;
- where a stage counts nothing, `first_zero` says which one and why; otherwise it is "";
- a rollout with calls and no trained token, and a trained share below a limit, never pass without an alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from whippletree.traces.tree import Node, Trace
from whippletree.types import Struct


class Funnel(Struct):
    """Counts of one trace, or of many (`add`). `linked`: calls whose prompt continues an earlier call, of those captured.

    `sampled_tokens` are the engines' counts, `trained_tokens` those of the samples; `roles`, `breaks` and `excluded` count
    calls by final role, by cause of a broken prefix, and by the reason why they are not trained.

    Example: Funnel(received=3, captured=3, delivered=3, trained=3, linked=2, roots=1, samples=1, prompt_tokens=60,
                    sampled_tokens=24, trained_tokens=24, sample_tokens=90, roles={"main": 3}, breaks={"first": 1})
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
    roles: dict[str, int] = {}
    breaks: dict[str, int] = {}
    excluded: dict[str, int] = {}
    first_zero: str = ""

    @property
    def trained_share(self) -> float | None:
        """Share of the sampled tokens that are trained; None where nothing was sampled."""
        return self.trained_tokens / self.sampled_tokens if self.sampled_tokens else None

    @property
    def reasons(self) -> str:
        """Why calls are left out, with their numbers, the most frequent reason first."""
        ranked = sorted(self.excluded.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} ({number})" for reason, number in ranked)


STAGES = {
    "received": "no model request reached the gateway: the harness did not start, or was not pointed at it",
    "captured": "no call left ids: every request failed before the engine answered, or the engine gives no ids",
    "sampled": "the engine sampled nothing in any call",
    "delivered": "no reply reached the harness whole: it disconnected, or its time was over",
    "trained": "no call can be trained",
}
TABLES = ("roles", "breaks", "excluded")
COUNTED = tuple(name for name in Funnel.__struct_fields__ if name not in (*TABLES, "first_zero"))


def funnel(trace: Trace) -> Funnel:
    """Count one trace."""
    nodes = trace.nodes
    captured = [node for node in nodes if node.prompt is not None]
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
            prompt_tokens=sum(node.call.prompt_tokens for node in nodes),
            sampled_tokens=sum(node.call.sampled_tokens for node in nodes),
            trained_tokens=_tokens(trained),
            sample_tokens=sum(path[-1].prompt_length + len(path[-1].sampled_ids) for path in paths),
            roles=dict(Counter(node.role for node in nodes)),
            breaks=dict(Counter(node.call.prefix_break for node in nodes if node.call.prefix_break)),
            excluded=dict(Counter(node.excluded for node in nodes if node.excluded)),
        )
    )


def add(funnels: Iterable[Funnel]) -> Funnel:
    """The sum of several funnels, explained anew."""
    counts: Counter[str] = Counter()
    tables: dict[str, Counter[str]] = {name: Counter() for name in TABLES}
    for one in funnels:
        counts.update({name: getattr(one, name) for name in COUNTED})
        for name, table in tables.items():
            table.update(getattr(one, name))
    return _explained(msgspec.convert({**counts, **{name: dict(table) for name, table in tables.items()}}, Funnel))


def alarm(counts: Funnel, least_trained_share: float = 0.0) -> str:
    """What is wrong with a rollout, or with the rollouts of a batch, in one sentence; "" when nothing is.

    `least_trained_share`: the share of sampled tokens that should be trained, below which it says so.
    """
    if counts.received and not counts.trained_tokens:
        return f"{counts.received} calls and not one trained token; {counts.first_zero}"
    share = counts.trained_share
    if share is None or share >= least_trained_share:
        return ""
    return (
        f"only {share:.0%} of {counts.sampled_tokens} sampled tokens are trained (the limit is {least_trained_share:.0%}); "
        f"left out: {counts.reasons}"
    )


def _tokens(nodes: Sequence[Node]) -> int:
    return sum(len(node.sampled_ids) for node in nodes)


def _explained(counts: Funnel) -> Funnel:
    """The same counts with the first stage that counts nothing, in words."""
    zero = next((stage for stage in STAGES if getattr(counts, stage) == 0), "")
    if not zero:
        return counts
    text = f"{zero} = 0: {STAGES[zero]}" + (f"; left out: {counts.reasons}" if counts.excluded else "")
    return msgspec.structs.replace(counts, first_zero=text)
