"""A model family as a bundle of functions: all that the rest of Motet knows of a family."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from motet.config.schema import DataConfig
from motet.models.policy import Policy
from motet.models.qwen3_omni import names
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    renderer: Callable[[Path, DataConfig, Path], Renderer]
    """(model folder, settings, folder that media paths start from) -> rows to prompts."""
    policy: Callable[[Path, torch.dtype, str], Policy]
    """(model folder, dtype, device) -> the module that samples and learns."""
    to_released: Callable[[str, Tensor], Iterator[tuple[str, Tensor]]]
    """One parameter in memory -> the tensors of the released checkpoint that it stands for."""


def _policy(path: Path, dtype: torch.dtype, device: str) -> Policy:
    return Thinker(path, dtype=dtype, device=device)


SPECS = {"qwen3_omni_moe": ModelSpec(renderer=Renderer, policy=_policy, to_released=names.to_released)}


def spec_of(path: Path) -> ModelSpec:
    """The family of a Hugging Face folder, by `model_type` in its config. Raises ValueError for an unknown one."""
    model_type = json.loads((path / "config.json").read_text())["model_type"]
    if model_type not in SPECS:
        raise ValueError(f"{path}: model_type {model_type!r} is not supported; supported: {', '.join(SPECS)}")
    return SPECS[model_type]
