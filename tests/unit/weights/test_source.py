from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from motet.models.qwen3_omni.names import to_released
from motet.weights.source import Census, WeightSource, compare


def test_census_and_stream_of_a_thinker_are_the_checkpoint(random_checkpoint: Path) -> None:
    from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

    module = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(random_checkpoint)
    on_disk = load_file(random_checkpoint / "model.safetensors")
    source = WeightSource(dict(module.named_parameters()), to_released)
    census = source.census()
    assert census == {name: (tuple(tensor.shape), torch.float32) for name, tensor in on_disk.items()}
    streamed = list(source)
    assert [name for name, _ in streamed] == list(census)
    assert all(torch.equal(tensor, on_disk[name]) and not tensor.requires_grad for name, tensor in streamed)


def test_stream_follows_the_weights_and_their_dtype() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    source = WeightSource({"model.norm.weight": parameter}, to_released)
    assert source.census() == {"thinker.model.norm.weight": ((2,), torch.bfloat16)}
    with torch.no_grad():
        parameter += 3
    assert [(name, tensor.tolist()) for name, tensor in source] == [("thinker.model.norm.weight", [3, 3])]


FULL: Census = {"a": ((2, 3), torch.float32), "b": ((4,), torch.float32), "c": ((5,), torch.float32)}


def test_equal_censuses_pass_in_any_order() -> None:
    compare(FULL, dict(reversed(FULL.items())))


@pytest.mark.parametrize(
    ("expected", "given", "message"),
    [
        (FULL, {"c": FULL["c"]}, "2 missing: a, b"),
        ({"b": FULL["b"]}, FULL, "2 unexpected: a, c"),
        (FULL, FULL | {"a": ((3, 2), torch.float32)}, "1 different: a (expected [2, 3] float32, given [3, 2] float32)"),
        (FULL, FULL | {"b": ((4,), torch.bfloat16)}, "1 different: b (expected [4] float32, given [4] bfloat16)"),
        ({"a": FULL["a"]}, {"z": FULL["a"]}, "1 missing: a; 1 unexpected: z"),
        ({str(i): FULL["a"] for i in range(4)}, {}, "4 missing: 0, 1, 2, ..."),
    ],
)
def test_unequal_censuses_name_the_first_leftovers(expected: Census, given: Census, message: str) -> None:
    with pytest.raises(ValueError) as error:
        compare(expected, given)
    assert str(error.value) == f"weights do not match: {message}"
