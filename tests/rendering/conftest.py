"""Small real models' files: a byte-level BPE trained here, with each of several chat templates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from rendering_models import GLM_MARKS, QWEN_MARKS, write_model

from whippletree.rendering import ChatRenderer, RenderingConfig, load_renderer


@pytest.fixture(scope="session")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one model directory per template; `tiny` has no template of its own."""
    root = tmp_path_factory.mktemp("models")
    write_model(root / "tiny")
    for template in ("thinking", "compact", "opened", "dated", "strict"):
        write_model(root / template, template)
    write_model(root / "observed", "observed", marks=GLM_MARKS, ends=["<|endoftext|>", "<|user|>", "<|observation|>"])
    write_model(root / "qwen3", marks=QWEN_MARKS)
    write_model(root / "glm", marks=GLM_MARKS)
    write_model(root / "normalising", "thinking", normalise=True)
    write_model(root / "stripping", "thinking", strip=True)
    return root


@pytest.fixture(scope="session")
def renderer(models_dir: Path) -> Callable[..., ChatRenderer]:
    """renderer(model, policy=..., ...) loads one, once per set of settings."""

    @cache
    def load(model: str, **settings: object) -> ChatRenderer:
        template = "tiny" if model == "tiny" else ""
        loaded = load_renderer(models_dir / model, RenderingConfig(template=template, **settings))  # type: ignore[arg-type]
        assert isinstance(loaded, ChatRenderer)
        return loaded

    return load
