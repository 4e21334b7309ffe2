"""The tiny checkpoint: a whole folder of the released family, the same for the same seed, cold and warm."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from motet.data import toy
from motet.models.qwen3_omni import tiny

VLLM_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def weights(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    with safe_open(folder / "model.safetensors", "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def fingerprint(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


# ---- the folder --------------------------------------------------------------------------------


def test_size(random_checkpoint: Path) -> None:
    tensors, _ = weights(random_checkpoint)
    assert 1e6 < sum(tensor.size for tensor in tensors.values()) < 3e6
    assert {str(tensor.dtype) for tensor in tensors.values()} == {"float32"}


def test_experts_have_their_released_names(random_checkpoint: Path) -> None:
    tensors, metadata = weights(random_checkpoint)
    experts = {name: tensor.shape for name, tensor in tensors.items() if ".experts." in name}
    assert experts == {
        f"thinker.model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight": shape
        for layer in range(4)
        for expert in range(8)
        for part, shape in {"gate": (64, 128), "up": (64, 128), "down": (128, 64)}.items()
    }
    parts = {re.match(r"thinker\.(?:model\.)?(\w+)", name)[1] for name in tensors}  # type: ignore[index]
    assert parts == {"audio_tower", "visual", "embed_tokens", "layers", "norm", "lm_head"}
    assert metadata == {"format": "pt"}


LOAD = """
import json, sys
from motet import compat
compat.torchvision()
from transformers import AutoConfig, AutoProcessor, AutoTokenizer, Qwen3OmniMoeForConditionalGeneration
folder = sys.argv[1]
model, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
    folder, enable_audio_output=False, output_loading_info=True
)
print(json.dumps({
    "config": type(AutoConfig.from_pretrained(folder)).__name__,
    "processor": type(AutoProcessor.from_pretrained(folder)).__name__,
    "tokens": AutoTokenizer.from_pretrained(folder)("<|im_start|>user")["input_ids"],
    "left_over": [sorted(map(str, info[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")],
    "has_talker": model.has_talker,
    "parameters": sum(p.numel() for p in model.parameters()),
}))
"""


def test_transformers_loads_it_offline(random_checkpoint: Path) -> None:
    """In a process of its own: the switch is read when huggingface_hub is imported."""
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, str(random_checkpoint)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert loaded.returncode == 0, loaded.stderr
    tensors, _ = weights(random_checkpoint)
    ids = config(random_checkpoint)
    assert json.loads(loaded.stdout) == {
        "config": "Qwen3OmniMoeConfig",
        "processor": "Qwen3OmniMoeProcessor",
        "tokens": [ids["im_start_token_id"], ids["user_token_id"]],
        "left_over": [[], [], []],
        "has_talker": False,
        "parameters": sum(tensor.size for tensor in tensors.values()),
    }


def test_config_has_what_vllm_reads(random_checkpoint: Path) -> None:
    whole = config(random_checkpoint)
    thinker = whole["thinker_config"]
    text, vision, audio = (thinker[f"{part}_config"] for part in ("text", "vision", "audio"))
    assert whole["architectures"] == ["Qwen3OmniMoeForConditionalGeneration"]
    assert whole["model_type"] == "qwen3_omni_moe"
    assert whole["enable_audio_output"] is False
    assert (text["model_type"], vision["model_type"], audio["model_type"]) == (
        "qwen3_omni_moe_text", "qwen3_omni_moe_vision_encoder", "qwen3_omni_moe_audio_encoder",
    )  # fmt: skip

    assert text["head_dim"] in VLLM_CPU_HEAD_SIZES
    assert text["hidden_size"] % 32 == text["moe_intermediate_size"] % 32 == 0
    assert sum(text["rope_parameters"]["mrope_section"]) == text["head_dim"] // 2
    assert text["num_experts"] > text["num_experts_per_tok"] > 1
    assert text["num_key_value_heads"] < text["num_attention_heads"]

    assert vision["out_hidden_size"] == audio["output_dim"] == text["hidden_size"]
    assert vision["hidden_size"] // vision["num_heads"] % 4 == 0
    assert vision["num_position_embeddings"] == (vision["image_size"] // vision["patch_size"]) ** 2
    assert vision["apply_vit_abs_pos_embed"] is True
    assert max(vision["deepstack_visual_indexes"]) < vision["depth"]
    assert 0 < len(vision["deepstack_visual_indexes"]) <= text["num_hidden_layers"]
    assert (audio["num_mel_bins"], audio["n_window"]) == (128, 50)

    assert thinker["position_id_per_seconds"] == 13
    assert thinker["seconds_per_chunk"] == 2


def test_ids_in_the_config_are_the_tokenizers(random_checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(random_checkpoint)
    whole = config(random_checkpoint)
    thinker = whole["thinker_config"]
    names = {
        "audio_token_id": "<|audio_pad|>", "image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>",
        "audio_start_token_id": "<|audio_start|>", "audio_end_token_id": "<|audio_end|>",
        "vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>", "user_token_id": "user",
    }  # fmt: skip
    assert tokenizer.convert_ids_to_tokens([thinker[key] for key in names]) == list(names.values())
    names = {"im_start_token_id": "<|im_start|>", "im_end_token_id": "<|im_end|>", "system_token_id": "system"}
    assert tokenizer.convert_ids_to_tokens([whole[key] for key in names]) == list(names.values())
    assert len(tokenizer) <= thinker["text_config"]["vocab_size"]


def test_tokenizer(random_checkpoint: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(random_checkpoint)
    for token in tiny.SPECIAL_TOKENS:
        assert tokenizer(token)["input_ids"] == [tokenizer.convert_tokens_to_ids(token)]
    words = [*toy.COLOURS, *toy.SHAPES, *toy.PITCHES, *toy.DIRECTIONS, "first", "second", "yes", "no"]
    for word in (*words, *toy.LETTERS[:4]):
        assert len(tokenizer(f" {word}")["input_ids"]) == 1
    for word in words:
        assert len(tokenizer(word)["input_ids"]) == 1
    text = "Größe 漢字 🙂\n\ttabs  and  spaces"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_chat_template(random_checkpoint: Path) -> None:
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(random_checkpoint)
    parts = [{"type": kind} for kind in ("image", "audio", "video")]
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]},
    ]
    assert processor.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|audio_start|><|audio_pad|><|audio_end|>"
        "<|vision_start|><|video_pad|><|vision_end|>What?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_weights_are_those_of_the_seed(random_checkpoint: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 0), ("other", 1)):
        tiny.build(tmp_path / name, seed=seed, warm_steps=0)
    assert fingerprint(tmp_path / "same") == fingerprint(random_checkpoint)
    ours, _ = weights(random_checkpoint)
    theirs, _ = weights(tmp_path / "other")
    assert ours.keys() == theirs.keys()
    assert not any(np.array_equal(ours[name], theirs[name]) for name in ours)


# ---- warm start --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warm(random_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The random folder after four steps on a tenth of the rows: twice with seed 0, once with seed 1."""
    from motet.models.qwen3_omni import warm

    folder = tmp_path_factory.mktemp("warm")
    with pytest.MonkeyPatch.context() as patch:
        whole_pool = warm.School._pool
        patch.setattr(warm.School, "_pool", lambda school, num_rows: whole_pool(school, num_rows=num_rows // 10))
        for name, seed in (("one", 0), ("same", 0), ("other", 1)):
            shutil.copytree(random_checkpoint, folder / name)
            warm.start(folder / name, seed=seed, num_steps=4)
    return {name: folder / name for name in ("one", "same", "other")}


def test_warm_start_is_the_same_for_the_same_seed(warm: dict[str, Path]) -> None:
    assert fingerprint(warm["one"]) == fingerprint(warm["same"])
    assert fingerprint(warm["one"]) != fingerprint(warm["other"])


def test_warm_start_moves_the_weights_and_nothing_else(random_checkpoint: Path, warm: dict[str, Path]) -> None:
    (cold, cold_metadata), (tensors, metadata) = weights(random_checkpoint), weights(warm["one"])
    assert {n: (t.shape, t.dtype) for n, t in tensors.items()} == {n: (t.shape, t.dtype) for n, t in cold.items()}
    assert metadata == cold_metadata
    moved = {name for name in cold if not np.array_equal(cold[name], tensors[name])}
    assert len(moved) > 0.9 * len(cold)
    for part in ("model.layers.0.self_attn", "model.layers.3.mlp", "visual.blocks.0", "audio_tower.layers.0"):
        assert any(name.startswith(f"thinker.{part}") for name in moved), part
    for file in random_checkpoint.iterdir():
        if file.name != "model.safetensors":
            assert (warm["one"] / file.name).read_bytes() == file.read_bytes()
