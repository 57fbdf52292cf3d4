"""The collocated asynchronous loop: sampling and updating share the machine, and the update does not wait for stragglers.

    groups in flight ──► k complete ──► hold new requests, drain running ones ──► update ─► publish ─► release
          ▲                                   │ (held requests wait at the gateway; the harness sees a slow answer)
          └────────── topped up ──────────────┘

Agent Lightning v1.0, "Collocated Async RL". The loop waits only for any k complete groups of those in flight; the gateway
waits for the calls that are running (it has a limit); harnesses between two calls go on working. A rollout may span several
policy versions: every token carries the one that sampled it, and the PPO ratio uses that token's own logprob. A sample with a
token that is more than `loop.max_staleness` versions old is left out of the loss and counted.
"""

from __future__ import annotations

from whippletree.loop.run import Run


def train(run: Run) -> None:
    """Train until `loop.steps` updates are done. A restarted run goes on where its store and checkpoint are."""
    loop = run.config.loop
    total = loop.steps * loop.groups_per_step
    in_flight = max(loop.groups_in_flight, loop.groups_per_step)
    for step in range(run.step, loop.steps):
        run.begin_evaluation(step)
        groups = run.collect(step, until=min(total, step * loop.groups_per_step + in_flight))
        with run.held():
            run.update(step, groups)
    run.begin_evaluation(loop.steps)
    run.finish_evaluations()
