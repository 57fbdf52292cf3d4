"""The model of the live tests: a tokenizer that a scripted engine answers with."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_world import make_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))
