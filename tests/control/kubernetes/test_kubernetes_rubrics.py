"""Rewards of Jobs: the run's expression over the pod's scores, and rubrics, with a real judge server."""

from __future__ import annotations

import asyncio

import pytest
from control_world import until
from judge_parts import judging, points, rubric
from kube_world import KubeWorld, until_async

from whippletree.control.kubernetes.outcome import paid
from whippletree.tasks.reward import RewardExpression
from whippletree.types import CauseClass, VerifierResult

MIX = "0.5 * reward + 0.5 * style"


async def test_the_expression_of_the_run_pays_jobs_too(kube: KubeWorld):
    names = [*kube.want("solve"), *kube.want("half")]
    async with kube.controlling(kube.kube_spec(reward="1 - reward")):
        rollouts = await kube.finished(names)
    assert [rollout.reward for rollout in rollouts] == [0.0, 0.5]
    assert kube.last(names[0]).result.expression == "1 - reward"


async def test_a_job_that_is_over_waits_for_its_judge_without_holding_the_cluster(kube: KubeWorld):
    async with judging(points(done=2)) as judge:
        judge.gate = gate = asyncio.Event()
        names = kube.want("half", 3)
        async with kube.controlling(kube.kube_spec(rubrics=(rubric(judge.url),), reward=MIX, jobs=1)):
            await until(lambda: len(kube.store.held_by("local-rubrics")) == 3)  # one Job at a time, and all three are over
            await until_async(lambda: kube.site.names("jobs"), [])
            gate.set()
            rollouts = await kube.finished(names)
    assert [(rollout.state, rollout.reward) for rollout in rollouts] == [("succeeded", 0.5)] * 3
    attempt = kube.last(names[0])
    assert attempt.result.scores == {"reward": 0.5, "style": 0.5} and attempt.result.rubrics[0].score == 0.5
    assert [phase.name for phase in attempt.phases] == ["pending", "agent", "rubric"]
    assert "make a file called done" in judge.questions[0]


async def test_the_next_reconciler_goes_on_with_what_waits_and_runs_no_job_again(kube: KubeWorld):
    async with judging(points(done=4)) as judge:
        judge.gate = asyncio.Event()
        names = kube.want("half", 2)
        spec = kube.kube_spec(rubrics=(rubric(judge.url, group_wise=True),), reward="style")
        async with kube.controlling(spec):
            await until(lambda: len(judge.asked) == 1)
        assert {kube.store.rollout(name).state for name in names} == {"running"}
        judge.gate = None
        async with kube.controlling(spec):
            rollouts = await kube.finished(names)
    assert [(rollout.reward, rollout.attempt) for rollout in rollouts] == [(1.0, 1)] * 2
    assert sorted(kube.site.kubelet.ran) == sorted(names)


async def test_a_judge_that_gives_no_score_is_a_cause(fake_kube: KubeWorld):
    async with judging(lambda question: "I would rather not.") as judge:
        names = fake_kube.want("solve")
        async with fake_kube.controlling(fake_kube.kube_spec(rubrics=(rubric(judge.url, tries=1),), reward="style")):
            (rollout,) = await fake_kube.finished(names)
    assert (rollout.state, rollout.reward, rollout.cause.cause) == ("failed", None, CauseClass.RUBRIC)


@pytest.mark.parametrize(
    ("result", "rule", "later", "reward", "scores"),
    [
        (VerifierResult(reward=0.5, scores={"x": 1.0}), "", (), 0.5, {"x": 1.0}),  # the pod's word stands
        (VerifierResult(reward=0.5, scores={"x": 1.0}), "reward + x", (), 1.5, {"x": 1.0, "reward": 0.5}),
        (VerifierResult(reward=None, scores={"x": 1.0, "y": 0.5}), "x * y", (), 0.5, {"x": 1.0, "y": 0.5}),
        (VerifierResult(reward=None, scores={"x": 0.25}), "", (), 0.25, {"x": 0.25}),  # the only score
        (VerifierResult(reward=0.5), "", ("style",), None, {"reward": 0.5}),
        (VerifierResult(reward=0.5), "", ("reward",), None, {}),  # the rubric's word goes before the pod's
    ],
)
def test_what_the_scores_of_a_pod_pay(result, rule, later, reward, scores):
    whole = paid(result, RewardExpression(rule) if rule else None, later)
    assert (whole.reward, whole.scores, whole.pending, whole.cause) == (reward, scores, later, None)


def test_scores_that_pay_nothing_are_a_cause():
    several = paid(VerifierResult(reward=None, scores={"x": 1.0, "y": 0.5}), None, ())
    assert several.reward is None and several.cause.cause is CauseClass.VERIFIER
    unknown = paid(VerifierResult(reward=1.0), RewardExpression("reward + z"), ())
    assert unknown.reward is None and unknown.cause.cause is CauseClass.CONFIGURATION
