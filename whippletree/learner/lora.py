"""Low-rank adapters (LoRA, arXiv:2106.09685) through the package peft: few trained parameters, and merged weights for engines.

    W' = W + (alpha / rank)·B·A, A random and B zero at first
Invariants (tests/learner/test_learner_lora.py):
- a model with fresh adapters is the model without them, and only the adapters train;
- merged weights have the names and shapes of the model without adapters, and score as the model with them does;
- merging changes nothing in the learner; adapters that are loaded again make the same next update, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from whippletree.errors import ConfigurationError
from whippletree.learner.config import LoRAConfig

ADAPTER = "default"


def add_adapters(model: Any, config: LoRAConfig) -> None:
    """Put adapters beside the target layers, in place, and freeze the rest. Raises ConfigurationError."""
    try:
        import peft
    except ImportError as error:
        raise ConfigurationError("learner.lora needs the package peft", "pip install 'whippletree[lora]'") from error
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=config.alpha, target_modules=list(config.targets), lora_dropout=0.0, bias="none"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            peft.inject_adapter_in_model(settings, model, adapter_name=ADAPTER)
        except ValueError as error:
            told = f"learner.lora.targets {list(config.targets)}: {error}"
            raise ConfigurationError(told, "name linear layers of the model") from error
    model.eval()


def adapter_state(model: Any) -> dict[str, torch.Tensor]:
    """The adapters alone."""
    return {name: value for name, value in model.state_dict().items() if _is_adapter(name)}


def require_same_adapters(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Raises ConfigurationError where adapters are of other layers or of another rank than the model's."""
    own = adapter_state(model)
    if {name: value.shape for name, value in own.items()} != {name: value.shape for name, value in state.items()}:
        raise ConfigurationError("the checkpoint's adapters are not those of [learner.lora]", "set rank and targets as then")


def load_adapters(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Take over adapters that `adapter_state` gave. Raises ConfigurationError where they are others."""
    require_same_adapters(model, state)
    model.load_state_dict(dict(state), strict=False)


@torch.no_grad()
def merged_state(model: Any, state: Mapping[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    """The weights of a model without adapters that is this one: a state dict of its names. `state`: the model's own state dict,
    where its tensors lie whole elsewhere."""
    state = model.state_dict() if state is None else state
    deltas = {}
    for name, module in model.named_modules():
        if hasattr(module, "get_delta_weight"):
            product = state[f"{name}.lora_B.{ADAPTER}.weight"] @ state[f"{name}.lora_A.{ADAPTER}.weight"]
            turned = product.T if module.fan_in_fan_out else product
            deltas[f"{name}.base_layer.weight"] = turned * module.scaling[ADAPTER]
    return {
        name.replace(".base_layer.", "."): value + deltas[name] if name in deltas else value
        for name, value in state.items()
        if not _is_adapter(name)
    }


def _is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
