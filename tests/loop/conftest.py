"""The world of the loop's tests, made once per session: weights, an engine process, a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_parts import VOCABULARY, World, gateway_on_thread


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    import torch
    from engine_parts import build, embedded_process
    from recorded_run import write_tokenizer

    from whippletree.rendering import RenderingConfig, load_renderer

    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("loop-world")
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model, other = (Path(build(root / name, "qwen3", seed, **shape)) for seed, name in enumerate(("model", "other")))
    renderer = load_renderer(write_tokenizer(model), RenderingConfig(template="tiny"))
    with (
        embedded_process(str(model), root) as (engine_url, _),
        gateway_on_thread(root / "gateway-store", engine_url, renderer) as gateway_url,
    ):
        yield World(model=model, other=other, engine_url=engine_url, gateway_url=gateway_url)
