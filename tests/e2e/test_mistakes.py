"""A user's mistake is one line that names the culprit, and status 2; or a counted skip, where the config says so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"


@pytest.fixture
def settings(random_checkpoint: Path, toy_folder: Path, tmp_path: Path) -> list[str]:
    """A run of one step in `tmp_path / "run"`, by a model that need not be any good."""
    return [
        str(RECIPE),
        f"run_dir={tmp_path / 'run'}",
        f"model.path={random_checkpoint}",
        f"data.train={toy_folder / 'train.jsonl'}",
        f"data.heldout={toy_folder / 'heldout.jsonl'}",
        "data.shuffle=false",
        "steps=1",
        "trainer.optimizer.warmup_steps=0",
    ]


@pytest.fixture
def rows(toy_folder: Path, tmp_path: Path, settings: list[str]) -> tuple[Path, list[dict[str, Any]]]:
    """A copy of the train rows to spoil; `settings` point at it."""
    folder = tmp_path / "toy"
    shutil.copytree(toy_folder, folder)
    settings.append(f"data.train={folder / 'train.jsonl'}")
    return folder, [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


@pytest.fixture
def my_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Source of the body of a reward function -> the override that names it."""

    def write(body: str) -> str:
        (tmp_path / "myreward.py").write_text(f"def score(task, completion):\n    {body}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return 'reward.score={kind="function", path="myreward:score"}'

    return write


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _image(rows: list[dict[str, Any]]) -> tuple[int, str]:
    """Index of the first row with one image, and the image."""
    for i, row in enumerate(rows):
        if row["kind"] == "image_colour":
            return i, row["messages"][0]["content"][0]["image"]
    raise AssertionError


def _error(done: Any) -> str:
    """The one line on stderr."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("motet: error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_unknown_setting(settings: list[str], motet: Any) -> None:
    line = _error(motet("train", *settings, "trainer.optimiser.lr=1"))
    assert "trainer.optimiser" in line
    assert "trainer.optimizer" in line


def test_missing_file(rows: Any, settings: list[str], motet: Any) -> None:
    folder, table = rows
    index, image = _image(table)
    (folder / image).unlink()
    line = _error(motet("train", *settings))
    assert f"train.jsonl:{index + 1}" in line
    assert image in line


def test_truncated_image(rows: Any, settings: list[str], motet: Any) -> None:
    folder, table = rows
    index, image = _image(table)
    (folder / image).write_bytes((folder / image).read_bytes()[:700])
    line = _error(motet("train", *settings))
    assert f"train.jsonl:{index + 1}" in line
    assert image in line


def test_truncated_image_is_a_counted_skip_where_the_config_says_so(
    rows: Any, settings: list[str], motet: Any, tmp_path: Path, my_reward: Any
) -> None:
    folder, table = rows
    _, image = _image(table)
    (folder / image).write_bytes(b"not a picture")
    reward = my_reward("return len(set(completion.token_ids.tolist())) % 2")  # anything with spread
    done = motet("train", *settings, "data.on_bad_row=skip", reward)
    assert done.returncode == 0, done.stderr
    step = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert step["groups/skipped/bad_media"] == 1


def test_answer_not_among_the_options(rows: Any, settings: list[str], motet: Any) -> None:
    folder, table = rows
    table[2]["answer"] = "elephant"
    _write(folder, table)
    line = _error(motet("train", *settings))
    assert "train.jsonl:3" in line
    assert "elephant" in line


def test_more_media_than_placeholders(rows: Any, settings: list[str], motet: Any) -> None:
    folder, table = rows
    _, image = _image(table)
    table[1] = {"question": "<image>What colour?", "images": [image, image], "options": ["red", "blue"], "answer": "A"}
    _write(folder, table)
    line = _error(motet("train", *settings))
    assert "train.jsonl:2" in line
    assert "2 image" in line
    assert "1 <image>" in line


def test_reward_that_raises(settings: list[str], motet: Any, my_reward: Any) -> None:
    line = _error(motet("train", *settings, my_reward("return 1 / 0")))
    assert "myreward:score" in line
    assert "heldout.jsonl:1" in line
    assert "ZeroDivisionError" in line or "division by zero" in line


def test_a_folder_that_holds_a_run_is_not_overwritten(settings: list[str], motet: Any, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    line = _error(motet("train", *settings))
    assert "--resume" in line
