"""The synchronous loop: collect a batch with one policy version, update, publish, repeat.

    collect k groups ─(waits for the slowest rollout)─► update ─► publish ─► collect k groups ...
                                                                     └─► evaluate, where it is due, and wait for it

The loop waits for the controller to finish every rollout of the step; the controller waits for harnesses; harnesses wait
for the engine. During the update nothing is in flight, so nobody waits for the learner.
Every sampled token of a batch has the learner's own policy version, so ratios start at 1.
"""

from __future__ import annotations

from whippletree.loop.run import Run


def train(run: Run) -> None:
    """Train until `loop.steps` updates are done. A restarted run goes on where its store and checkpoint are."""
    k = run.config.loop.groups_per_step
    for step in range(run.step, run.config.loop.steps):
        run.evaluate_if_due(step)
        run.update(step, run.collect(step, until=(step + 1) * k, ahead=False))
    run.evaluate_if_due(run.config.loop.steps)
