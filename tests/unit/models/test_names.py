"""The name mapping, against what transformers itself writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from motet.models.qwen3_omni.names import from_released, released_names, to_released


@pytest.fixture(scope="module")
def on_disk(random_checkpoint: Path) -> dict[str, Tensor]:
    return load_file(random_checkpoint / "model.safetensors")


@pytest.fixture(scope="module")
def module(random_checkpoint: Path) -> torch.nn.Module:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    return Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(random_checkpoint)


def test_released_tensors_are_those_of_the_checkpoint(module: torch.nn.Module, on_disk: dict[str, Tensor]) -> None:
    released = [pair for name, p in module.named_parameters() for pair in to_released(name, p.detach())]
    assert sorted(name for name, _ in released) == sorted(on_disk)
    assert all(torch.equal(tensor, on_disk[name]) for name, tensor in released)


def test_names_and_shapes_without_tensors(module: torch.nn.Module, on_disk: dict[str, Tensor]) -> None:
    released = [pair for name, p in module.named_parameters() for pair in released_names(name, tuple(p.shape))]
    assert dict(released) == {name: tuple(tensor.shape) for name, tensor in on_disk.items()}
    assert len(released) == len(on_disk)


def test_filling_from_the_checkpoint_is_bit_exact(module: torch.nn.Module, on_disk: dict[str, Tensor]) -> None:
    filled = {name: torch.full_like(p, torch.nan, requires_grad=True) for name, p in module.named_parameters()}
    for name, parameter in filled.items():
        from_released(name, parameter, on_disk.__getitem__)
    assert all(torch.equal(filled[name], p) for name, p in module.named_parameters())


def test_experts_by_hand() -> None:
    gate_up = torch.arange(24.0).reshape(2, 4, 3)  # 2 experts, I = 2, H = 3
    released = dict(to_released("model.layers.7.mlp.experts.gate_up_proj", gate_up))
    prefix = "thinker.model.layers.7.mlp.experts"
    assert {name: tensor.tolist() for name, tensor in released.items()} == {
        f"{prefix}.0.gate_proj.weight": [[0, 1, 2], [3, 4, 5]],
        f"{prefix}.0.up_proj.weight": [[6, 7, 8], [9, 10, 11]],
        f"{prefix}.1.gate_proj.weight": [[12, 13, 14], [15, 16, 17]],
        f"{prefix}.1.up_proj.weight": [[18, 19, 20], [21, 22, 23]],
    }
    down = torch.zeros(2, 3, 2)
    assert released_names("model.layers.7.mlp.experts.down_proj", tuple(down.shape)) == [
        (f"{prefix}.0.down_proj.weight", (3, 2)),
        (f"{prefix}.1.down_proj.weight", (3, 2)),
    ]
    assert released_names("lm_head.weight", (5, 3)) == [("thinker.lm_head.weight", (5, 3))]


def test_released_tensors_are_views() -> None:
    gate_up = torch.zeros(2, 4, 3)
    for _, view in to_released("model.layers.0.mlp.experts.gate_up_proj", gate_up):
        view += 1
    assert gate_up.eq(1).all()


def test_a_tensor_of_another_shape_is_refused_not_broadcast() -> None:
    message = r"^thinker\.lm_head\.weight is \[1, 3\] in the checkpoint and \[5, 3\] in the model: .*"
    with pytest.raises(ValueError, match=message):
        from_released("lm_head.weight", torch.zeros(5, 3), lambda name: torch.ones(1, 3))
