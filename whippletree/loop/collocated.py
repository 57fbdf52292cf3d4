"""The collocated asynchronous loop: sampling and updating share the machine, and the update does not wait for stragglers.

    groups in flight ──► k complete ──► hold new requests, drain running ones ──► update ─► publish ─► release
          ▲                                   │ (held requests wait at the gateway; the harness sees a slow answer)
          └────────── topped up ──────────────┘

Agent Lightning v1.0, "Collocated Async RL". The loop waits only for any k complete groups of those in flight; the gateway
waits for the calls that are running (it has a limit); harnesses between two calls go on working. A rollout may span several
policy versions: every token carries the one that sampled it, and the PPO ratio uses that token's own logprob.
"""

from __future__ import annotations

from whippletree.loop.run import Run


def train(run: Run) -> None:
    """Train until `loop.steps` updates are done. A restarted run goes on where its store and checkpoint are."""
    loop = run.config.loop
    total = loop.steps * loop.groups_per_step
    in_flight = max(loop.groups_in_flight, loop.groups_per_step)
    for step in range(run.step, loop.steps):
        run.evaluate_if_due(step)
        run.create_groups(until=min(total, step * loop.groups_per_step + in_flight), step=step)
        run.wait_for_groups(loop.groups_per_step)
        with run.held():
            run.update(step, run.ready_groups()[: loop.groups_per_step])
    run.evaluate_if_due(loop.steps)
