"""The random state of the process, as JSON values. Motet itself draws by seed and key; a reward of yours may not."""

from __future__ import annotations

import random
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import torch


def state() -> dict[str, Any]:
    """Of Python's, numpy's and torch's own generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
    }


def restore(saved: dict[str, Any]) -> None:
    """Go on with what `state` gave, after it went through JSON or not."""
    version, internal, gauss = saved["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(saved["numpy"]))
    torch.set_rng_state(torch.frombuffer(bytearray(b64decode(saved["torch"])), dtype=torch.uint8))
