from __future__ import annotations

from pathlib import Path

import pytest

from motet.config.checks import check, check_evaluation
from motet.config.load import ConfigError, load
from motet.config.schema import RunConfig


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("train.jsonl").touch()
    Path("heldout.jsonl").touch()
    Path("empty").mkdir()


def config(*overrides: str) -> RunConfig:
    return load(
        None, ["run_dir=r", "model.path=model", "data.train=train.jsonl", "data.heldout=heldout.jsonl", *overrides]
    )


@pytest.mark.parametrize(
    ("bad", "good", "line"),
    [
        (
            "rollout.top_p=0.99",
            "rollout.top_p=1",
            "rollout.top_p = 0.99: should be 1 in training: the log-probability of",
        ),
        (
            "rollout.top_k=1",
            "rollout.top_k=0",
            "rollout.top_k = 1: should be 0 in training: the log-probability of what",
        ),
        (
            "rollout.group_size=1",
            "rollout.group_size=2",
            "rollout.group_size = 1: should be at least 2, as completions",
        ),
        (
            "trainer.optimizer.warmup_steps=101",
            "trainer.optimizer.warmup_steps=100",
            "trainer.optimizer.warmup_steps = 101: should be at most steps = 100",
        ),
        (
            "trainer.optimizer.betas=[0.9, 1]",
            "trainer.optimizer.betas=[0, 0.999]",
            "trainer.optimizer.betas = [0.9, 1.0]: each should be at least 0 and below 1",
        ),
        (
            "data.image={min_pixels=64}",
            "data.image={min_pixels=64, max_pixels=64}",
            "data.image: min_pixels and max_pixels should be set together, or neither",
        ),
        (
            "data.image={min_pixels=65, max_pixels=64}",
            "data.image={min_pixels=64, max_pixels=64}",
            "data.image.min_pixels = 65: should be at most data.image.max_pixels = 64",
        ),
        (
            "data.video={min_pixels=65, max_pixels=64}",
            "data.video={min_pixels=64, max_pixels=64}",
            "data.video.min_pixels = 65: should be at most data.video.max_pixels = 64",
        ),
        (
            "data.heldout=empty/../train.jsonl",
            "data.heldout=heldout.jsonl",
            "data.heldout = 'empty/../train.jsonl': is data.train too; held-out rows must not be trained on",
        ),
        (
            "data.train=none/t.jsonl",
            "data.train=empty",
            "data.train = 'none/t.jsonl': no such file; name your rows, or",
        ),
        (
            "data.heldout=none.jsonl",
            "data.heldout=empty",
            "data.heldout = 'none.jsonl': no such file; name your rows, or",
        ),
        (
            "data.media_roots=['none']",
            "data.media_roots=['empty']",
            "data.media_roots: no folder 'none'; name the folders",
        ),
        (
            "model.path=none",
            "model.path=model",
            "model.path = 'none': no such folder; name a Hugging Face model folder, or",
        ),
        (
            "model.path=empty",
            "model.path=model",
            "model.path = 'empty': no config.json in this folder; name a Hugging Face",
        ),
    ],
)
def test_training_is_refused_with_one_line_on_one_side_of_the_boundary(bad: str, good: str, line: str) -> None:
    check(config(good))
    with pytest.raises(ConfigError) as caught:
        check(config(bad))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_faults_are_told_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check(config("rollout.top_k=5", "model.path=none"))
    assert [line.split(" = ")[0] for line in str(caught.value).splitlines()] == ["rollout.top_k", "model.path"]


def test_training_needs_no_heldout_rows_and_evaluation_does() -> None:
    unset = RunConfig.model_validate({"run_dir": "r", "model": {"path": "model"}, "data": {"train": "train.jsonl"}})
    check(unset)
    with pytest.raises(ConfigError, match=r"^data\.heldout is not set: name the rows to evaluate on$"):
        check_evaluation(unset)


def test_evaluation_needs_its_rows_and_its_model_only() -> None:
    check_evaluation(config("data.train=none.jsonl", "rollout.top_k=5"))
    with pytest.raises(ConfigError, match=r"^data\.heldout = 'none\.jsonl': no such file"):
        check_evaluation(config("data.heldout=none.jsonl"))
    with pytest.raises(ConfigError, match=r"^model\.path = 'none': no such folder"):
        check_evaluation(config("model.path=none"))


def test_another_model_stands_in_for_the_one_of_the_config() -> None:
    check_evaluation(config("model.path=none"), Path("model"))
    with pytest.raises(ConfigError, match=r"^--model = 'empty': no config\.json in this folder"):
        check_evaluation(config(), Path("empty"))
