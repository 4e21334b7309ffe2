"""A model family as a bundle of functions: all that the rest of Motet knows of a family."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from motet.config.schema import LoraConfig
from motet.models.lora import Targets
from motet.models.policy import Policy
from motet.models.qwen3_omni import names
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    renderer: Callable[..., Renderer]
    """(model folder, DataConfig, folder that media paths start from, what decodes) -> rows to prompts. By default
    `media.load` decodes."""
    policy: Callable[..., Policy]
    """(model folder, dtype, device, LoraConfig or None, seed of the adapters) -> the module that samples and learns."""
    to_released: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
    """One parameter in memory -> the tensors of the released checkpoint that it stands for."""
    from_released: Callable[[str, Tensor, Callable[[str], Tensor]], None]
    """(name in memory, tensor to fill, reader of released tensors)."""
    lora_targets: Callable[[LoraConfig], Targets]
    """What the adapters of a run are put on."""
    tied: Callable[[Mapping[str, Any]], dict[str, str]]
    """Config of a released checkpoint -> its tensors that are others under a second name."""


def _policy(path: Path, dtype: torch.dtype, device: str, lora: LoraConfig | None = None, seed: int = 0) -> Policy:
    return Thinker(path, dtype=dtype, device=device, lora=lora, seed=seed)


SPECS = {
    "qwen3_omni_moe": ModelSpec(
        renderer=Renderer,
        policy=_policy,
        to_released=names.to_released,
        from_released=names.from_released,
        lora_targets=names.lora_targets,
        tied=names.tied,
    ),
}


def spec_of(path: Path) -> ModelSpec:
    """The family of a Hugging Face folder, by `model_type` in its config. Raises ValueError for an unknown one."""
    model_type = json.loads((path / "config.json").read_text())["model_type"]
    if model_type not in SPECS:
        raise ValueError(f"{path}: model_type {model_type!r} is not supported; supported: {', '.join(SPECS)}")
    return SPECS[model_type]
