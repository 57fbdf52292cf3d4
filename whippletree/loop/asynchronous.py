"""The fully asynchronous loop: the engine samples all the time, the learner updates all the time, and neither is held.

    engine   ── samples ──────────── samples ──(swap)── samples ────────────────► never held
                  │ groups complete               ▲ weights, in flight
    learner  collect k groups ─► update ─► publish ┘ ─► top up ─► collect k groups ...

The learner waits only for k complete groups, and takes those first that were started first. Sampling waits for nobody: an
engine freezes its running requests for the swap of its weights and goes on with them, so a rollout goes on over updates and
each of its tokens carries the version that sampled it (rows have them in `versions`). What bounds how old tokens get:

- at dispatch, the capacity rule (`groups.capacity`; AReaL, arXiv:2505.24298, Eq. 3): started groups <= (policy version +
  max_staleness + 1) x groups_per_step, so a fast engine stops when it is max_staleness updates ahead;
- at consumption, the sweep: a sample with a trained token that is more than max_staleness versions old is left out of the
  loss and counted, never its rollout's vote nor its group (`samples_left_out`, `tokens_left_out` of the metrics).
"""

from __future__ import annotations

from whippletree.loop.groups import capacity
from whippletree.loop.run import Run


def train(run: Run) -> None:
    """Train until `loop.steps` updates are done. A restarted run goes on where its store and checkpoint are."""
    loop = run.config.loop
    for step in range(run.step, loop.steps):
        run.begin_evaluation(step)
        most = capacity(run.learner.policy_version, loop.max_staleness, loop.groups_per_step)
        run.update(step, run.collect(step, until=min(most, loop.steps * loop.groups_per_step), oldest_first=True))
    run.begin_evaluation(loop.steps)
    run.finish_evaluations()
