"""A warmed-up checkpoint and toy rows, built once a session by the real commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

RECIPE = Path(__file__).parents[2] / "recipes" / "tiny.toml"
Motet = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def motet() -> Motet:
    """Run `motet` in a process of its own."""

    def run(*words: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "motet.cli", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, motet: Motet) -> Path:
    """A folder with `tiny/` (warmed up) and `toy/`; processes that share out the tests share it too."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "world"
    with FileLock(f"{folder}.lock"):
        for words in (("tiny", folder / "tiny"), ("data", "toy", folder / "toy")):
            if not (finished := folder / f"{words[0]}.finished").exists():
                done = motet(*words)
                assert done.returncode == 0, done.stderr
                finished.touch()
    return folder


@pytest.fixture(scope="session")
def settings_for(world: Path) -> Callable[[Path], list[str]]:
    """Run folder -> the recipe and the overrides that point it there and at `world`."""

    def settings(run: Path) -> list[str]:
        return [
            str(RECIPE),
            f"run_dir={run}",
            f"model.path={world / 'tiny'}",
            f"data.train={world / 'toy' / 'train.jsonl'}",
            f"data.heldout={world / 'toy' / 'heldout.jsonl'}",
        ]

    return settings


@pytest.fixture
def settings(settings_for: Callable[[Path], list[str]], tmp_path: Path) -> list[str]:
    """Those of a run in `tmp_path / "run"`."""
    return settings_for(tmp_path / "run")
