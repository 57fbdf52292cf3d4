"""A small random Qwen3 and rows made of random samples."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner_parts import make_samples, write_model

from whippletree.types import Sample


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("small-model"))


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same architecture with other weights."""
    return write_model(tmp_path_factory.mktemp("other-model"), seed=8)


@pytest.fixture
def sample_batch() -> list[Sample]:
    return make_samples()
