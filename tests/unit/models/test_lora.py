"""LoRA on the real tiny Thinker, with peft."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from motet.checkpoint.export import adapted, export, export_adapter
from motet.checkpoint.store import CheckpointStore
from motet.config.load import dump
from motet.config.schema import LoraConfig, RunConfig
from motet.models.attention import Packed
from motet.models.qwen3_omni.thinker import Thinker

BOTH = LoraConfig(rank=4, alpha=8, targets=("attention", "experts"))
EACH = [LoraConfig(rank=4, alpha=8, targets=("attention",)), LoraConfig(rank=4, alpha=8, targets=("experts",)), BOTH]


def logits(thinker: Thinker, prompt: Any) -> Tensor:
    ids, positions = torch.from_numpy(prompt.token_ids).long(), torch.from_numpy(prompt.positions).long()
    with torch.no_grad():
        features = [thinker.encode(item) for item in prompt.media]
        return thinker.head(thinker.hidden(ids, positions, prompt.media, features, Packed([0, len(ids)])))


def stir(thinker: Thinker) -> None:
    """Adapters as training might leave them."""
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in thinker.trained().values():
            parameter += 0.05 * torch.randn(parameter.shape, generator=draw)


def save_run(folder: Path, base: Path, config: LoraConfig, make_trainer: Any, thinker: Thinker) -> Path:
    settings = {
        "run_dir": str(folder),
        "model": {"path": str(base)},
        "data": {"train": "rows.jsonl"},
        "trainer": {"lora": config.model_dump()},
    }
    folder.mkdir()
    (folder / "config.toml").write_text(dump(RunConfig.model_validate(settings)))
    trainer = make_trainer(thinker)

    async def save() -> None:
        store = CheckpointStore(folder / "checkpoints", keep_last=1)
        await store.save(7, state={}, write=trainer.save, num_bytes=trainer.state_bytes, metric=None)
        await store.settled()

    asyncio.run(save())
    return folder / "checkpoints" / "step-000007"


@pytest.mark.parametrize("config", EACH, ids=lambda c: "+".join(c.targets))
def test_adapters_begin_as_nothing_and_are_named_after_what_they_change(
    random_checkpoint: Path, prompts: Any, thinker: Any, config: LoraConfig
) -> None:
    adapted = Thinker(random_checkpoint, lora=config)
    torch.testing.assert_close(logits(adapted, prompts["video_agree"]), logits(thinker, prompts["video_agree"]))
    assert adapted.towers_fingerprint() == thinker.towers_fingerprint()
    trained = adapted.trained()
    whole = {name.removesuffix(".lora_A").removesuffix(".lora_B") for name in trained}
    assert whole <= set(thinker.trained())
    layers = len(adapted.layers)
    per_layer = 4 * ("attention" in config.targets) + 2 * ("experts" in config.targets)
    assert len(whole) == layers * per_layer and len(trained) == 2 * len(whole)
    assert {id(p) for p in adapted.module.parameters() if p.requires_grad} == {id(p) for p in trained.values()}


def test_adapters_are_drawn_by_the_seed_alone(random_checkpoint: Path) -> None:
    one = Thinker(random_checkpoint, lora=BOTH, seed=5).trained()
    torch.manual_seed(99)
    drawn = torch.random.get_rng_state()
    same = Thinker(random_checkpoint, lora=BOTH, seed=5).trained()
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(torch.equal(one[name], same[name]) for name in one)
    other = Thinker(random_checkpoint, lora=BOTH, seed=6).trained()
    assert {name for name in one if torch.equal(one[name], other[name])} == {n for n in one if n.endswith("lora_B")}


@pytest.mark.parametrize("config", EACH, ids=lambda c: "+".join(c.targets))
def test_merged_and_peft_exports_score_as_the_run_does(
    random_checkpoint: Path, prompts: Any, thinker: Any, make_trainer: Any, tmp_path: Path, config: LoraConfig
) -> None:
    import peft

    ours = Thinker(random_checkpoint, lora=config)
    stir(ours)
    save_run(tmp_path / "run", random_checkpoint, config, make_trainer, ours)
    expected = logits(ours, prompts["video_agree"])
    assert (expected - logits(thinker, prompts["video_agree"])).abs().max() > 1e-2

    export(tmp_path / "run", tmp_path / "merged")
    merged = logits(Thinker(tmp_path / "merged"), prompts["video_agree"])
    torch.testing.assert_close(merged, expected, atol=1e-5, rtol=0)

    export_adapter(tmp_path / "run", tmp_path / "adapter")
    plain = Thinker(random_checkpoint)
    plain.module = peft.PeftModel.from_pretrained(plain.module, str(tmp_path / "adapter")).get_base_model()
    torch.testing.assert_close(logits(plain, prompts["video_agree"]), expected, atol=1e-6, rtol=0)


def test_the_merged_tensor_is_the_base_and_alpha_over_rank_b_a(
    random_checkpoint: Path, make_trainer: Any, thinker: Any, tmp_path: Path
) -> None:
    ours = Thinker(random_checkpoint, lora=BOTH)
    stir(ours)
    checkpoint = save_run(tmp_path / "run", random_checkpoint, BOTH, make_trainer, ours)
    merged = dict(adapted(checkpoint, random_checkpoint, BOTH))
    name = "model.layers.0.self_attn.k_proj.weight"
    factors, base = ours.trained(), thinker.trained()
    expected = base[name] + 2.0 * factors[f"{name}.lora_B"] @ factors[f"{name}.lora_A"]
    torch.testing.assert_close(merged[name], expected.detach(), atol=1e-7, rtol=0)
    assert merged.keys() == {n.rpartition(".lora_")[0] for n in factors}


def test_without_peft_it_says_how_to_get_it(random_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"^trainer\.lora needs peft: pip install 'motet\[lora\]'$"):
        Thinker(random_checkpoint, lora=BOTH)


def test_a_run_without_adapters_has_none_to_export(random_checkpoint: Path, tmp_path: Path) -> None:
    settings = {"run_dir": "run", "model": {"path": str(random_checkpoint)}, "data": {"train": "rows.jsonl"}}
    (tmp_path / "config.toml").write_text(dump(RunConfig.model_validate(settings)))
    with pytest.raises(ValueError, match=r"trains no adapters .* without --adapter$"):
        export_adapter(tmp_path, tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()


def test_a_folder_that_is_taken_keeps_what_it_holds(random_checkpoint: Path, make_trainer: Any, tmp_path: Path) -> None:
    save_run(tmp_path / "run", random_checkpoint, BOTH, make_trainer, Thinker(random_checkpoint, lora=BOTH))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "mine.txt").touch()
    with pytest.raises(ValueError, match="exists and is not empty"):
        export_adapter(tmp_path / "run", tmp_path / "adapter")
    assert [file.name for file in (tmp_path / "adapter").iterdir()] == ["mine.txt"]

    (tmp_path / ".tmp-other").mkdir()  # of an export that was killed
    (tmp_path / ".tmp-other" / "adapter_model.safetensors").write_bytes(b"half")
    export_adapter(tmp_path / "run", tmp_path / "other")
    assert {file.name for file in (tmp_path / "other").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not (tmp_path / ".tmp-other").exists()
