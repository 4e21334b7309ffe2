"""What is not as it should be is found, by the check that is there for it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from motet.checkpoint import verify
from motet.checkpoint.folder import INDEX, TensorFolder
from motet.weights.source import Census

HEAD, NORM = "thinker.lm_head.weight", "thinker.model.norm.weight"


@pytest.fixture
def folder(random_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(random_checkpoint, tmp_path / "exported"))


@pytest.fixture
def census(random_checkpoint: Path) -> Census:
    return TensorFolder(random_checkpoint).census()


def change(folder: Path, name: str, tensor: Tensor) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: tensor}, file, {"format": "pt"})


def test_names_shapes_and_dtypes(folder: Path, census: Census) -> None:
    verify.names(folder, census)
    for other, message in (
        (census | {"talker.w": ((1,), torch.float32)}, r"1 missing: talker\.w"),
        ({n: e for n, e in census.items() if n != NORM}, rf"1 unexpected: {NORM}"),
        (census | {NORM: ((128,), torch.bfloat16)}, r"expected \[128\] bfloat16, given \[128\] float32"),
    ):
        with pytest.raises(ValueError, match=message):
            verify.names(folder, other)
    weight_map = dict.fromkeys([*census, "talker.w"], "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=r"index\.json and the files disagree, first about talker\.w"):
        verify.names(folder, census)


def test_one_bit(folder: Path) -> None:
    expected = load_file(folder / "model.safetensors")
    verify.tensors(folder, expected.items())
    flipped = expected[NORM].clone()
    flipped.view(torch.int32)[3] ^= 1
    change(folder, NORM, flipped)
    with pytest.raises(ValueError, match=rf"exported: {NORM} reads back other than it was written"):
        verify.tensors(folder, expected.items())


def test_what_transformers_cannot_load(folder: Path) -> None:
    verify.loading(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"exported: AutoConfig does not load it: [^\n]+$"):
        verify.loading(folder)


def test_logits_up_to_the_bound(folder: Path, random_checkpoint: Path, census: Census) -> None:
    head = load_file(folder / "model.safetensors")[HEAD]
    trained = [(HEAD, 2 * head)]  # not the base's

    def check(given: Tensor) -> None:
        change(folder, HEAD, given)
        verify.logits(folder, base=random_checkpoint, source=trained, census=census)

    check(2 * head)
    check(2 * head * (1 + 2**-21))  # 4.8e-7
    for wrong in (2 * head * (1 + 2**-19), head, head * torch.nan):  # 1.9e-6
        with pytest.raises(ValueError, match=r"logits differ from the trained one's by .* \(bound: 1e-06\)"):
            check(wrong)


def test_logits_see_the_config(folder: Path, random_checkpoint: Path, census: Census) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["thinker_config"]["text_config"]["rms_norm_eps"] = 1e-3
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"exported: transformers loads a model whose logits differ"):
        verify.logits(folder, base=random_checkpoint, source=[], census=census)


def test_a_model_larger_than_memory_is_said_to_be_not_compared(
    folder: Path,
    random_checkpoint: Path,
    census: Census,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(folder, HEAD, load_file(folder / "model.safetensors")[HEAD] * 2)
    needed = sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values())
    monkeypatch.setattr(verify, "memory_bytes", lambda: needed - 1)
    with caplog.at_level(logging.WARNING):
        verify.logits(folder, base=random_checkpoint, source=[], census=census)
    assert "logits are not compared: the model takes" in caplog.text
    monkeypatch.setattr(verify, "memory_bytes", lambda: needed)
    with pytest.raises(ValueError, match="logits differ"):
        verify.logits(folder, base=random_checkpoint, source=[], census=census)
