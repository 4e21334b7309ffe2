"""Cures for faults of released packages. Each says what breaks, where, and is a no-op where nothing does."""

from __future__ import annotations

import importlib.util
from typing import Any

_kept: list[Any] = []  # a torch Library unregisters its operators when it is collected


def torchvision() -> None:
    """Make `import torchvision` work beside a CPU-only torch.

    The wheel is linked against CUDA libraries, so beside a CPU build its operators stay unregistered and the import
    dies on the first of them. Qwen3-Omni's video processor needs torchvision, though none of these operators:
    declaring the schemas is enough. Call before anything imports torchvision.
    """
    import torch

    if _kept or torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(library)
