"""The exception tree. Each message names the cause and the next step.

WhippletreeError
├── ConfigurationError      a setting is wrong; names file and key
├── TaskError               a task directory cannot be used; names file and key
├── StoreError              a record cannot be written or read
│   ├── ConflictError       an illegal state transition; the state did not change
│   └── FencedError         a report of an attempt that is no longer the current one
├── EngineError             an engine failed or answered nonsense
│   ├── EngineUnavailable   no answer now; a retry may help
│   ├── ContextOverflow     the prompt does not fit the model's context
│   └── WeightMismatch      after a weight sync the engine's logprobs are not the learner's
├── RequestError            a harness's request cannot be served; carries an HTTP status
├── ProcessError            a supervised process did not get ready or kept dying
├── ClusterError            a Kubernetes API server refused a request or does not answer
├── SandboxError            a sandbox cannot be started, entered or stopped
│   └── ImageError          an image cannot be built, fetched or unpacked; carries the builder's last words
├── HarnessError            a harness cannot be launched or broke its contract
├── VerifierError           a verifier gave no usable reward
├── AlignmentError          ids, logprobs or masks of a call do not line up; names the call
├── NonFiniteError          NaN or inf would reach the optimiser; names rows and tokens
└── DivergedError           the policy is further from its reference than the run allows
"""

from __future__ import annotations

import difflib
from collections.abc import Collection


def did_you_mean(name: str, known: Collection[str], otherwise: str = "", *, prefix: str = "") -> str:
    """The next step for a name that is not known: the nearest one that is, after `prefix`; where none is near, `otherwise`, or
    all that are known."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if near:
        return f"did you mean {prefix}{near[0]}?"
    return otherwise or f"known here: {', '.join(sorted(known))}"


def words_of(error: Exception) -> str:
    """What an error says, for a message that names the path already: of one of the system's neither its number nor the path."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


class WhippletreeError(Exception):
    """Base of all errors of this package.

    `cause` says what is wrong, `next_step` what to do about it; the text of the exception is both.
    """

    def __init__(self, cause: str, next_step: str = "") -> None:
        super().__init__(f"{cause} ({next_step})" if next_step else cause)
        self.cause = cause
        self.next_step = next_step


class ConfigurationError(WhippletreeError):
    """A setting is wrong; the message names file and key."""


class TaskError(WhippletreeError):
    """A task directory cannot be used; the message names file and key."""


class StoreError(WhippletreeError):
    """A record cannot be written or read."""


class ConflictError(StoreError):
    """An illegal state transition; the state did not change."""


class FencedError(StoreError):
    """A report of an attempt that is no longer the current one; nothing changed."""


class EngineError(WhippletreeError):
    """An engine failed or answered nonsense."""


class EngineUnavailable(EngineError):
    """An engine does not answer now; a retry may help, not before `retry_after` seconds where the engine asked for that."""

    def __init__(self, cause: str, next_step: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(cause, next_step)
        self.retry_after = retry_after


class ContextOverflow(EngineError):
    """The prompt does not fit the model's context."""


class WeightMismatch(EngineError):
    """After a weight sync the engine's logprobs of a known prompt are not the learner's; the run must stop."""


class RequestError(WhippletreeError):
    """A harness's request cannot be served. `status` is the HTTP status that its dialect's error carries."""

    def __init__(self, cause: str, next_step: str = "", *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(cause, next_step)
        self.status = status
        self.code = code


class ProcessError(WhippletreeError):
    """A supervised process did not get ready or kept dying; the message ends with its last lines of output."""


class ClusterError(WhippletreeError):
    """A Kubernetes API server refused a request or does not answer. `status` is its HTTP status (0: no answer), `reason` its
    own word for it ("AlreadyExists", "Conflict", "Expired"...), `retry_after` seconds that it asked to wait (0: none)."""

    def __init__(self, cause: str, next_step: str = "", *, status: int = 0, reason: str = "", retry_after: float = 0.0) -> None:
        super().__init__(cause, next_step)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class SandboxError(WhippletreeError):
    """A sandbox cannot be started, entered or stopped."""


class ImageError(SandboxError):
    """An image cannot be built, fetched or unpacked; the message ends with the last words of who tried."""


class HarnessError(WhippletreeError):
    """A harness cannot be launched or broke its contract."""


class VerifierError(WhippletreeError):
    """A verifier gave no usable reward."""


class AlignmentError(WhippletreeError):
    """Ids, logprobs or masks of a call do not line up; the message names the call."""


class NonFiniteError(WhippletreeError):
    """NaN or inf would reach the optimiser; the message names rows and tokens. Nothing was updated."""


class DivergedError(WhippletreeError):
    """The policy is further from its reference than the run allows; nothing was updated."""
