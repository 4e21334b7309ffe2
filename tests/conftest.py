"""Fixtures that several packages' tests share. What lives for a session is read, never changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.render import Renderer
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.rollout.embedded import EmbeddedEngine
    from motet.trainer.torch_ import TorchTrainer
    from motet.types import Prompt, Task


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real Qwen3-Omni folder of about two million random weights. Read it, do not write into it."""
    from motet import compat

    compat.torchvision()
    from motet.models.qwen3_omni import tiny

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    tiny.build(folder, seed=0, warm_steps=0)
    return folder


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy data set on disk: five train and two held-out rows of each kind."""
    from motet.data import toy

    folder = tmp_path_factory.mktemp("toy")
    toy.write(folder, seed=3, num_train=45, num_heldout=18)
    return folder


@pytest.fixture(scope="session")
def renderer(random_checkpoint: Path) -> Renderer:
    from motet.config.schema import DataConfig, VideoConfig
    from motet.models.qwen3_omni.render import Renderer

    video = VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536)
    return Renderer(random_checkpoint, DataConfig(train="", video=video), Path("."))


@pytest.fixture(scope="session")
def toy_tasks() -> dict[str, Task]:
    """A toy row of every kind, clips in memory."""
    from motet.data import toy

    return {kind: toy.task(toy.draw(kind, np.random.default_rng(i)), kind) for i, kind in enumerate(toy.KINDS)}


@pytest.fixture(scope="session")
def prompts(renderer: Renderer, toy_tasks: dict[str, Task]) -> dict[str, Prompt]:
    """The toy rows, rendered."""
    from motet.types import Prompt

    rendered = {kind: renderer(task) for kind, task in toy_tasks.items()}
    return {kind: prompt for kind, prompt in rendered.items() if isinstance(prompt, Prompt)}


@pytest.fixture(scope="session")
def thinker(random_checkpoint: Path) -> Thinker:
    """The random model in float32. Its weights stay as they are."""
    from motet.models.qwen3_omni.thinker import Thinker

    return Thinker(random_checkpoint)


@pytest.fixture(scope="session")
def features(thinker: Thinker) -> FeatureStore:
    """Encoder outputs of `thinker`."""
    from motet.features.store import FeatureStore

    return FeatureStore(thinker.encode, fingerprint=thinker.towers_fingerprint())


@pytest.fixture
def make_engine(thinker: Thinker, features: FeatureStore, renderer: Renderer) -> Callable[..., EmbeddedEngine]:
    """An embedded engine, by default on `thinker`."""
    from motet.rollout.embedded import EmbeddedEngine

    def make(model: Thinker = thinker, store: FeatureStore = features, **settings: Any) -> EmbeddedEngine:
        defaults: dict[str, Any] = {
            "decode_text": renderer.decode,
            "eos_ids": renderer.eos_ids,
            "banned_ids": renderer.banned_ids,
            "max_sequences": 64,
        }
        return EmbeddedEngine(model, store, **(defaults | settings))

    return make


@pytest.fixture
def make_trainer(random_checkpoint: Path, renderer: Renderer) -> Callable[..., TorchTrainer]:
    """A trainer, by default of GRPO on a float32 model of its own. `optimizer` and `config` are settings."""
    import torch

    from motet.algorithms import GRPO
    from motet.config.schema import OptimizerConfig, TrainerConfig
    from motet.features.store import FeatureStore
    from motet.models.qwen3_omni.thinker import Thinker
    from motet.trainer.torch_ import TorchTrainer

    def make(
        model: Thinker | None = None,
        algorithm: Any = None,
        *,
        store: FeatureStore | None = None,
        dtype: str = "float32",
        reference: Thinker | None = None,
        temperature: float = 1.0,
        num_steps: int = 10,
        optimizer: dict[str, Any] | None = None,
        **config: Any,
    ) -> TorchTrainer:
        model = model or Thinker(random_checkpoint, dtype=getattr(torch, dtype))
        return TorchTrainer(
            model,
            store or FeatureStore(model.encode, fingerprint=model.towers_fingerprint()),
            algorithm or GRPO(),
            TrainerConfig(optimizer=OptimizerConfig(**(optimizer or {})), **config),
            reference=reference,
            temperature=temperature,
            banned_ids=renderer.banned_ids,
            num_steps=num_steps,
        )

    return make
