"""Names, labels and annotations by which our objects are known in a namespace that others use, too.

Invariants (tests/control/kubernetes/test_kubernetes_template.py): names and label values are valid for Kubernetes and differ
for different rollouts, whatever their ids are; an object without every label of an owner is nobody's.
"""

from __future__ import annotations

from collections.abc import Mapping

from whippletree.control.kubernetes.decide import Owner
from whippletree.kubernetes.labels import MANAGED_BY, MANAGER, label_value, slug

RUN = "whippletree/run"
CONTROLLER = "whippletree/controller"
ROLLOUT = "whippletree/rollout"  # a slug as label, the whole id as annotation
ATTEMPT = "whippletree/attempt"
PHASE = "whippletree/phase"
KEY = "key"  # name of the key within an attempt's Secret


def job_name(run: str, rollout_id: str, attempt: int) -> str:
    """The Job of an attempt: one name, so that it can be created once only. At most 63 characters."""
    return f"wt-{run}-{slug(rollout_id)}-{attempt}"


def owner_labels(owner: Owner) -> dict[str, str]:
    """The labels of everything that a controller creates."""
    return {MANAGED_BY: MANAGER, RUN: label_value(owner.run), CONTROLLER: label_value(owner.controller)}


def attempt_labels(owner: Owner, rollout_id: str, attempt: int) -> dict[str, str]:
    """The labels of what belongs to one attempt."""
    return {**owner_labels(owner), ROLLOUT: label_value(rollout_id), ATTEMPT: str(attempt)}


def selector(owner: Owner) -> str:
    """The label selector of everything that a controller created."""
    return ",".join(f"{name}={value}" for name, value in owner_labels(owner).items())


def owner_of(labels: Mapping[str, str]) -> Owner | None:
    """Whose an object is; None if it is not one of ours."""
    if labels.get(MANAGED_BY) != MANAGER or RUN not in labels or CONTROLLER not in labels:
        return None
    return Owner(run=labels[RUN], controller=labels[CONTROLLER])
