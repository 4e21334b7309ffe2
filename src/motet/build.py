"""RunConfig -> wired parts. With `motet.run`, the only file that imports concrete classes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from motet.config.schema import DataConfig, FeaturesConfig, LoraConfig, RunConfig
from motet.data.decode import Decoder
from motet.data.media import Media, MediaError
from motet.features.store import FeatureStore
from motet.models.policy import Policy
from motet.models.spec import spec_of
from motet.rollout.embedded import EmbeddedEngine
from motet.rollout.prompts import Render
from motet.trainer.torch_ import TorchTrainer
from motet.types import Prompt, Skip, Task

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What asking questions needs: of a training run, and alone for evaluation."""

    thinker: Any
    features: FeatureStore
    renderer: Any
    engine: EmbeddedEngine


def decoder(data: DataConfig) -> Decoder:
    return Decoder(
        num_workers=data.decode_workers, timeout_seconds=data.decode_timeout_seconds, cache_bytes=data.cache_bytes
    )


def sampler(
    config: RunConfig, model: Path, base: Path, load_media: Callable[..., Media], *, lora: LoraConfig | None = None
) -> Sampler:
    """Load the model and put the embedded engine on it."""
    transformers.utils.logging.disable_progress_bar()
    spec = spec_of(model)
    device = config.model.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    thinker = spec.policy(model, DTYPES[config.model.dtype], device, lora, config.seed)
    features = _features(config.features, thinker)
    renderer = spec.renderer(model, config.data, base, load_media)
    engine = EmbeddedEngine(
        thinker,
        features,
        decode_text=renderer.decode,
        eos_ids=renderer.eos_ids,
        banned_ids=renderer.banned_ids,
        max_sequences=config.rollout.engine.max_sequences,
    )
    return Sampler(thinker=thinker, features=features, renderer=renderer, engine=engine)


def _features(config: FeaturesConfig, thinker: Policy) -> FeatureStore:
    kept = config.source != "off"
    return FeatureStore(
        thinker.encode,
        fingerprint=thinker.towers_fingerprint(),
        memory_bytes=config.memory_bytes if kept else 0,
        folder=Path(config.folder) if kept and config.folder else None,
        folder_bytes=config.folder_bytes,
        device=thinker.device,
    )


def trainer(config: RunConfig, parts: Sampler, algorithm: Any) -> TorchTrainer:
    reference = None
    if algorithm.needs_reference:
        model = Path(config.model.path)
        reference = spec_of(model).policy(model, DTYPES[config.model.dtype], str(parts.thinker.device))
    return TorchTrainer(
        parts.thinker,
        parts.features,
        algorithm,
        config.trainer,
        reference=reference,
        temperature=config.rollout.temperature,
        banned_ids=parts.renderer.banned_ids,
        num_steps=config.steps,
    )


def skipping(render: Render, on_bad_row: str) -> Render:
    """`render` that turns a row whose media cannot be read into a named and counted skip, where the config says so."""

    def lenient(task: Task) -> Prompt | Skip:
        try:
            return render(task)
        except MediaError as error:
            logger.warning("row skipped: %s", error)
            return Skip(reason="bad_media")

    return lenient if on_bad_row == "skip" else render
