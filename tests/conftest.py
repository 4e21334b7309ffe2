"""Fixtures that several packages' tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def random_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real Qwen3-Omni folder of about two million random weights. Read it, do not write into it."""
    from motet import compat

    compat.torchvision()
    from motet.models.qwen3_omni import tiny

    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    tiny.build(folder, seed=0, warm_steps=0)
    return folder
