"""A rollout as a reader of the API gets it: its calls, their tree, its samples, and why each other call is not trained.

Invariants (tests/traces/test_traces_view.py):
- a view holds every call of the trace once, and each one that trains nothing says why;
- a view survives JSON, with non-finite logprobs as null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from whippletree.traces.stages import Funnel, funnel
from whippletree.traces.tree import Node, Trace
from whippletree.types import Call, Role, Rollout, Sample, Struct


class CallView(Struct):
    """One call in its place. `role` is the final one (traces/roles.py); `call.role` is what the gateway could tell.

    `parent` and `children` are call ids. `excluded` says why it is not trained ("" when it is). `samples`: ids of the samples
    that hold it; `trained_in`: the one that trains it ("" where none does).

    Example: CallView(call=Call(call_id="c-1", ...), parent="c-0", delivered=True, samples=("r-1.1",), trained_in="r-1.1")
    """

    call: Call
    role: Role = "main"
    parent: str = ""
    children: tuple[str, ...] = ()
    delivered: bool = False
    excluded: str = ""
    samples: tuple[str, ...] = ()
    trained_in: str = ""


class SampleView(Struct):
    """A training sequence (types.Sample) as lists. All columns have length L; a logprob that is not finite is None.

    Example: SampleView(sample_id="r-1.0", call_ids=("c-0",), token_ids=[1, 2], trained=[False, True], logprobs=[0.0, -0.1],
                        versions=[-1, 3])
    """

    sample_id: str
    call_ids: tuple[str, ...]
    token_ids: list[int]
    trained: list[bool]
    logprobs: list[float | None]
    versions: list[int]


class RolloutView(Struct):
    """A rollout with its last attempt's calls by index. `breaks` maps the cause of a prefix break to the calls that have it.

    Example: RolloutView(rollout=Rollout(...), calls=(CallView(...),), samples=(SampleView(...),), breaks={"first": ("c-0",)},
                         funnel=Funnel(received=1, ...))
    """

    rollout: Rollout
    calls: tuple[CallView, ...] = ()
    samples: tuple[SampleView, ...] = ()
    breaks: dict[str, tuple[str, ...]] = {}
    funnel: Funnel = Funnel()


def rollout_view(rollout: Rollout, trace: Trace, samples: Sequence[Sample]) -> RolloutView:
    """The view of a rollout, its trace (`load_trace`) and the samples made of it (`build_samples`)."""
    held: dict[str, list[str]] = {}
    for sample in samples:
        for call_id in sample.call_ids:
            held.setdefault(call_id, []).append(sample.sample_id)
    breaks: dict[str, tuple[str, ...]] = {}
    for node in trace.nodes:
        if node.call.prefix_break:
            breaks[node.call.prefix_break] = (*breaks.get(node.call.prefix_break, ()), node.call_id)
    return RolloutView(
        rollout=rollout,
        calls=tuple(_call(node, tuple(held.get(node.call_id, ()))) for node in trace.nodes),
        samples=tuple(_sample(sample) for sample in samples),
        breaks=breaks,
        funnel=funnel(trace),
    )


def _call(node: Node, samples: tuple[str, ...]) -> CallView:
    return CallView(
        call=node.call,
        role=node.role,
        parent=node.parent,
        children=node.children,
        delivered=node.delivered,
        excluded=node.excluded,
        samples=samples,
        trained_in=samples[0] if node.trainable and samples else "",  # the first path trains what paths share
    )


def _sample(sample: Sample) -> SampleView:
    return SampleView(
        sample_id=sample.sample_id,
        call_ids=sample.call_ids,
        token_ids=sample.token_ids.tolist(),
        trained=sample.trained.tolist(),
        logprobs=[value if math.isfinite(value) else None for value in sample.logprobs.tolist()],
        versions=sample.versions.tolist(),
    )
