"""What one setting cannot know alone: rules between settings, and the files that they name.

Cheap, and before anything heavy is imported, so that a mistake costs a moment and not a model load.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from motet.config.load import ConfigError
from motet.config.schema import RunConfig


def check(config: RunConfig) -> None:
    """Refuse what cannot be trained. Raises `ConfigError`, one line per fault."""
    _raise(*_rules(config), *_model(config.model.path, "model.path"), *_data(config))


def check_evaluation(config: RunConfig, model: Path | None = None) -> None:
    """Refuse what cannot be evaluated. `model` stands in for `model.path`. Raises `ConfigError`."""
    folder = _model(config.model.path, "model.path") if model is None else _model(str(model), "--model")
    unset = () if config.data.heldout else ("data.heldout is not set: name the rows to evaluate on",)
    _raise(*unset, *folder, *_heldout(config))


def check_rows(config: RunConfig) -> None:
    """Refuse settings that name rows, media folders or a model that are not there; `model.path` may be empty. Raises
    `ConfigError`."""
    _raise(*(_model(config.model.path, "model.path") if config.model.path else ()), *_data(config))


def _raise(*faults: str) -> None:
    if faults:
        raise ConfigError("\n".join(faults))


def _rules(config: RunConfig) -> Iterator[str]:
    rollout, optimizer = config.rollout, config.trainer.optimizer
    lie = "the log-probability of what was sampled would not be the policy's, so ratios would be wrong"
    if rollout.top_p < 1:
        yield f"rollout.top_p = {rollout.top_p}: should be 1 in training: {lie}"
    if rollout.top_k > 0:
        yield f"rollout.top_k = {rollout.top_k}: should be 0 in training: {lie}"
    if rollout.group_size < 2:
        yield f"rollout.group_size = {rollout.group_size}: should be at least 2, as completions are compared"
    if optimizer.warmup_steps > config.steps:
        yield f"trainer.optimizer.warmup_steps = {optimizer.warmup_steps}: should be at most steps = {config.steps}"
    if not all(0 <= beta < 1 for beta in optimizer.betas):
        yield f"trainer.optimizer.betas = {list(optimizer.betas)}: each should be at least 0 and below 1"
    for name, pixels in (("image", config.data.image), ("video", config.data.video)):
        low, high = pixels.min_pixels, pixels.max_pixels
        if (low is None) != (high is None):
            yield f"data.{name}: min_pixels and max_pixels should be set together, or neither"
        if low is not None and high is not None and low > high:
            yield f"data.{name}.min_pixels = {low}: should be at most data.{name}.max_pixels = {high}"


def _model(path: str, setting: str) -> Iterator[str]:
    if not Path(path, "config.json").is_file():
        fault = "no config.json in this folder" if Path(path).is_dir() else "no such folder"
        yield f"{setting} = '{path}': {fault}; name a Hugging Face model folder, or build a tiny one: motet tiny {path}"


def _data(config: RunConfig) -> Iterator[str]:
    train, heldout = config.data.train, config.data.heldout
    if not Path(train).exists():
        toy = f"motet data toy {Path(train).parent}"
        yield f"data.train = '{train}': no such file; name your rows, or write toy ones: {toy}"
    yield from _heldout(config)
    if heldout is not None and Path(train).resolve() == Path(heldout).resolve():
        yield f"data.heldout = '{heldout}': is data.train too; held-out rows must not be trained on"
    for root in config.data.media_roots:
        if not Path(root).is_dir():
            yield f"data.media_roots: no folder '{root}'; name the folders that media files lie in"


def _heldout(config: RunConfig) -> Iterator[str]:
    path = config.data.heldout
    if path is not None and not Path(path).exists():
        yield f"data.heldout = '{path}': no such file; name your rows, or leave it unset to train without evaluation"
