"""Call trees, training samples, and the comparison with a harness's own account."""

from whippletree.traces.atif import Account, Trajectory, read_account, read_trajectory
from whippletree.traces.atif_export import export_atif
from whippletree.traces.building import build_trace, load_trace
from whippletree.traces.config import TracesConfig
from whippletree.traces.export import TraceText, describe, explain
from whippletree.traces.payloads import read_messages, read_reply
from whippletree.traces.reconcile import Finding, Reconciliation, reconcile
from whippletree.traces.roles import assign_roles
from whippletree.traces.samples import build_samples, call_numbers
from whippletree.traces.stages import Funnel, alarm, funnel
from whippletree.traces.stages import add as add_funnels
from whippletree.traces.tree import Node, Trace
from whippletree.traces.view import CallView, RolloutView, SampleView, rollout_view

__all__ = [
    "Account",
    "CallView",
    "Finding",
    "Funnel",
    "Node",
    "Reconciliation",
    "RolloutView",
    "SampleView",
    "Trace",
    "TraceText",
    "TracesConfig",
    "Trajectory",
    "add_funnels",
    "alarm",
    "assign_roles",
    "build_samples",
    "build_trace",
    "call_numbers",
    "describe",
    "explain",
    "export_atif",
    "funnel",
    "load_trace",
    "read_account",
    "read_messages",
    "read_reply",
    "read_trajectory",
    "reconcile",
    "rollout_view",
]
