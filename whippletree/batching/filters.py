"""Which groups have something to teach.

Filters are applied in the order of the configuration, each to what the ones before it kept. They see groups as they were
judged: advantages (and loss weights) are computed before, on everything, so that dropping changes no other row.

Invariants (tests/batching/test_batching_filters.py):
- every group is either kept or counted once, under the first filter that drops it and its reason;
- a kept group keeps all its voters, those with advantage 0 too;
- the pass-rate band is judged on outcomes: shaping moves no group in or out of it;
- without filters every group is kept, and the order of rollouts changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from whippletree.batching.advantages import Advantages, GroupStatistics
from whippletree.batching.config import FilterConfig, FunctionFilter, PassRateFilter, VotersFilter, ZeroAdvantageFilter
from whippletree.batching.registry import Registry
from whippletree.errors import ConfigurationError
from whippletree.types import Struct

Filter = Callable[[GroupStatistics, Any], str]
"""(group, settings) → why the group is dropped; "" for one that is kept."""


class DroppedGroup(Struct):
    """A group that is not trained: which filter dropped it, and why.

    Example: DroppedGroup(group_id="s0003-g02", filter="pass-rate", reason="all_passed")
    """

    group_id: str
    filter: str
    reason: str


class KeptGroups(Struct):
    """The groups that are trained, in order of their names, and the others.

    Example: KeptGroups(group_ids=("g1", "g4"), dropped=(DroppedGroup(...),))
    """

    group_ids: tuple[str, ...]
    dropped: tuple[DroppedGroup, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many groups were dropped, by "filter: reason"."""
        found: dict[str, int] = {}
        for group in self.dropped:
            name = f"{group.filter}: {group.reason}"
            found[name] = found.get(name, 0) + 1
        return found


def outside_band(group: GroupStatistics, settings: PassRateFilter) -> str:
    """Drops groups whose share of passed voters is outside of [low, high]."""
    if not group.voters:
        return "no_reward"
    rate = group.passed / group.voters
    if settings.low <= rate <= settings.high:
        return ""
    if group.passed in (0, group.voters):
        return "none_passed" if not group.passed else "all_passed"
    return "too_hard" if rate < settings.low else "too_easy"


def zero_advantage(group: GroupStatistics, settings: ZeroAdvantageFilter) -> str:
    """Drops groups in which every advantage is exactly 0."""
    if group.nonzero:
        return ""
    return "zero_advantage" if group.signal == "signal" else group.signal


def few_voters(group: GroupStatistics, settings: VotersFilter) -> str:
    """Drops groups with fewer usable rewards than wanted."""
    return "" if group.voters >= settings.least else "few_voters"


FILTERS: Registry[Filter] = Registry(
    what="group filter",
    arguments=("group", "settings"),
    shipped={"pass-rate": outside_band, "zero-advantage": zero_advantage, "voters": few_voters},
)


def filter_name(settings: FilterConfig) -> str:
    """The name by which a filter is found and counted."""
    return settings.function if isinstance(settings, FunctionFilter) else str(settings.__struct_config__.tag)


def keep_groups(
    advantages: Advantages,
    filters: Sequence[FilterConfig] = (ZeroAdvantageFilter(),),
) -> KeptGroups:
    """The groups that pass every filter. Raises ConfigurationError for an unknown filter, or one that gives no text."""
    kept: list[GroupStatistics] = list(advantages.groups)
    dropped: list[DroppedGroup] = []
    for settings in filters:
        name = filter_name(settings)
        judge = FILTERS.find(name)
        staying = []
        for group in kept:
            reason = judge(group, settings)
            if not isinstance(reason, str):
                raise ConfigurationError(f"group filter {name!r} gave {reason!r}", 'return why a group is dropped, or ""')
            if reason:
                dropped.append(DroppedGroup(group_id=group.group_id, filter=name, reason=reason))
            else:
                staying.append(group)
        kept = staying
    return KeptGroups(group_ids=tuple(group.group_id for group in kept), dropped=tuple(dropped))
