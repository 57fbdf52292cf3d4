"""Call trees and training samples."""

from whippletree.traces.export import TraceText, describe, explain
from whippletree.traces.samples import build_samples
from whippletree.traces.stages import Funnel, funnel
from whippletree.traces.stages import add as add_funnels
from whippletree.traces.tree import Node, Trace, build_trace, load_trace

__all__ = [
    "Funnel",
    "Node",
    "Trace",
    "TraceText",
    "add_funnels",
    "build_samples",
    "build_trace",
    "describe",
    "explain",
    "funnel",
    "load_trace",
]
