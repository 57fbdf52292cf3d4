"""Settings of the room: which calls are trained, and when a run says that too little is."""

from __future__ import annotations

from whippletree.configuration import Config
from whippletree.types import Role


class TracesConfig(Config):
    """[traces]"""

    train_roles: tuple[Role, ...] = ("main", "subagent", "compaction")
    """Roles of calls that are trained. Sub-agents and compactions are branches of the rollout and share its reward; side calls
    (titles, summaries for people, commit messages) have no part in it and are left out unless they are named here."""
    least_trained_share: float = 0.5
    """A step warns when less than this share of its sampled tokens can be trained; 0 never warns."""
