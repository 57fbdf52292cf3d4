"""What every record is made of."""

from __future__ import annotations

from typing import Literal, dataclass_transform

import msgspec
import numpy as np
import numpy.typing as npt

Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]

FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every record: immutable, keyword-only, defaults left out on the wire."""
