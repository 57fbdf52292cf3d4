"""Typed structs that cross a process boundary, each with one worked example.

Words are those of docs/architecture.md: task, source, harness, sandbox, rollout, attempt, call, trace, sample, group, batch,
policy version, payload, metadata. Times are seconds since the epoch (float) unless a name says otherwise; lengths are tokens.

Invariants held here (tests/test_types.py):
- every struct round-trips through JSON and MessagePack unchanged;
- unknown fields in a decoded struct are ignored, so that an older reader accepts a newer writer's records.
"""

from whippletree.types.base import Bool, FinishReason, Float32, Int32, Struct
from whippletree.types.calls import Call, CallPayload, CallTimes, PayloadKey, PrefixBreak, Role
from whippletree.types.engines import (
    ChatTurn,
    EngineReport,
    EngineStatus,
    GenerateRequest,
    Grade,
    RoutedExperts,
    Sampling,
    TokenChunk,
    TokenIds,
    VersionSpan,
    WeightUpdate,
    ids_json,
)
from whippletree.types.messages import ChatRequest, Media, Message, ParsedMessage, RequestedSampling, ToolCall, ToolSpec
from whippletree.types.rollouts import (
    Attempt,
    CallReward,
    Cause,
    CauseClass,
    Event,
    EventPage,
    KeptSnapshot,
    Launch,
    Phase,
    Purpose,
    QueueCount,
    QueueReport,
    Rollout,
    RolloutPage,
    RolloutSpec,
    RolloutState,
    StepRecord,
    StepResult,
    Usage,
    VerifierResult,
)
from whippletree.types.samples import Sample

__all__ = [
    "Attempt",
    "Bool",
    "Call",
    "CallPayload",
    "CallReward",
    "CallTimes",
    "Cause",
    "CauseClass",
    "ChatRequest",
    "ChatTurn",
    "EngineReport",
    "EngineStatus",
    "Event",
    "EventPage",
    "FinishReason",
    "Float32",
    "GenerateRequest",
    "Grade",
    "Int32",
    "KeptSnapshot",
    "Launch",
    "Media",
    "Message",
    "ParsedMessage",
    "PayloadKey",
    "Phase",
    "PrefixBreak",
    "Purpose",
    "QueueCount",
    "QueueReport",
    "RequestedSampling",
    "Role",
    "Rollout",
    "RolloutPage",
    "RolloutSpec",
    "RolloutState",
    "RoutedExperts",
    "Sample",
    "Sampling",
    "StepRecord",
    "StepResult",
    "Struct",
    "TokenChunk",
    "TokenIds",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "VerifierResult",
    "VersionSpan",
    "WeightUpdate",
    "ids_json",
]
