"""LoRA ("Low-Rank Adaptation of Large Language Models", arXiv:2106.09685): W + alpha / rank * B A, through peft.

peft puts adapters into the module and computes with them. Here they are named after the tensors that they change,

    model.layers.0.self_attn.q_proj.weight.lora_A        [rank, in]        .lora_B  [out, rank]
    model.layers.0.mlp.experts.gate_up_proj.lora_A       [E * rank, in]    .lora_B  [out, rank * E]

so that checkpoints do not depend on peft's wrapping, and weights merge one tensor at a time, without peft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from motet.config.schema import LoraConfig

FACTORS = ("lora_A", "lora_B")
ADAPTER = "default"
MISSING = "trainer.lora needs peft: pip install 'motet[lora]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What a family's adapters are put on."""

    layers: Sequence[str]
    """Last names of linear layers."""
    tensors: Sequence[str]
    """Ends of the names of tensors [E, out, in], those of experts."""
    except_in: str
    """Pattern of the full names of modules that are left alone, the towers. (peft reduces a pattern of what to adapt
    to last names, which would take in the towers' layers.)"""


def add_adapters(module: torch.nn.Module, config: LoraConfig, targets: Targets, *, seed: int) -> None:
    """Put adapters into the module. A is drawn under the seed, B begins at zero, so nothing changes yet.

    Raises ValueError where peft is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise ValueError(MISSING) from error

    settings = _peft_settings(config, targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(peft.LoraConfig(**settings), module, adapter_name=ADAPTER)


def adapters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The factors by the names above, in the order of the module's layers."""
    found = {}
    for path, layer in module.named_modules():
        if hasattr(layer, "lora_A") and ADAPTER in layer.lora_A:
            tensor = f"{_unwrapped(path)}.{getattr(layer, 'parameter_name', 'weight')}"
            for factor in FACTORS:
                found[f"{tensor}.{factor}"] = getattr(layer, factor)[ADAPTER].weight
    return found


def merged(
    factors: Iterable[tuple[str, Tensor]], config: LoraConfig, read: Callable[[str, Tensor], None]
) -> Iterator[tuple[str, Tensor]]:
    """The adapted tensors, whole, in float32, one in memory at a time.

    Args:
        factors: `adapters` as (name, tensor), each A next to its B.
        read: fills an empty tensor with the base's of that name.
    """
    for name, a, b in _pairs(factors):
        delta = _delta(a, b, config)
        weight = torch.empty(delta.shape)
        read(name, weight)
        yield name, weight.add_(delta)


def write_peft_folder(
    factors: Mapping[str, Tensor],
    config: LoraConfig,
    targets: Targets,
    folder: Path,
    *,
    base: Path,
) -> None:
    """A folder that `peft.PeftModel.from_pretrained(base model, folder)` loads."""
    folder.mkdir(parents=True)
    nesting = {tensor.rpartition(".")[2]: depth for depth, tensor in enumerate(reversed(targets.tensors))}
    named = {}
    for name, tensor in factors.items():
        layer, parameter, factor = re.fullmatch(r"(.+)\.(\w+)\.(lora_[AB])", name).groups()  # type: ignore[union-attr]
        wrapping = ".base_layer" * nesting.get(parameter, 0)  # two tensors of a layer: a wrapper within a wrapper
        named[f"base_model.model.{layer}{wrapping}.{factor}.weight"] = tensor.contiguous()
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    settings = _peft_settings(config, targets) | {"peft_type": "LORA", "base_model_name_or_path": str(base)}
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def _peft_settings(config: LoraConfig, targets: Targets) -> dict[str, Any]:
    return {
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(targets.layers),
        "target_parameters": list(targets.tensors) or None,
        "exclude_modules": targets.except_in,
    }


def _unwrapped(path: str) -> str:
    return path.replace(".base_layer", "")


def _pairs(factors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor, Tensor]]:
    ordered = iter(factors)
    for (name, a), (other, b) in zip(ordered, ordered, strict=True):
        tensor = name.removesuffix(".lora_A")
        assert other == f"{tensor}.lora_B", f"{name} stands beside {other}"
        yield tensor, a, b


def _delta(a: Tensor, b: Tensor, config: LoraConfig) -> Tensor:
    """alpha / rank * B A: [out, in], or [E, out, in] of E experts, whose factors peft keeps in one pair of matrices."""
    num_experts = a.shape[0] // config.rank
    scale = config.alpha / config.rank
    if num_experts == 1:
        return scale * (b @ a)
    a = a.reshape(num_experts, config.rank, -1)
    b = b.reshape(len(b), config.rank, num_experts)
    return scale * torch.einsum("ore,eri->eoi", b, a)
