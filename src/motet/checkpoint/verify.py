"""What an exported folder must show before it gets its name. Every function raises ValueError where it does not."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from motet.checkpoint.disk import size_text
from motet.checkpoint.folder import TensorFolder
from motet.checkpoint.tensor_file import DTYPES, as_bytes, census_bytes, tensor_bytes
from motet.config.schema import DataConfig
from motet.models.attention import Packed
from motet.models.policy import Policy
from motet.models.spec import ModelSpec, spec_of
from motet.types import MediaPart, Message, Prompt, Task, TextPart
from motet.weights.source import Census, compare

logger = logging.getLogger(__name__)

MAX_DIFFERENCE = 1e-6
"""Of a logit, as a part of the largest one. Both models hold the same bits, so this is for the order in which a
product is summed up, and it holds in bfloat16 too: the trainer publishes its float32 weights rounded to bfloat16, and
an export to bfloat16 rounds them in the same way."""


def names(folder: Path, census: Census) -> None:
    """The index equals the tensors on disk both ways, and these equal the census, as safetensors itself reads them."""
    files = sorted(set(TensorFolder(folder).file_of.values()))  # the index
    found: Census = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as handle:
            for name in handle.keys():  # noqa: SIM118
                header = handle.get_slice(name)
                found[name] = (tuple(header.get_shape()), DTYPES[header.get_dtype()])
    compare(census, found)


def tensors(folder: Path, expected: Iterable[tuple[str, Tensor]]) -> None:
    """Every tensor on disk equals the expected one, bit for bit."""
    written = TensorFolder(folder)
    for name, tensor in expected:
        if not torch.equal(as_bytes(written.read(name)), as_bytes(tensor)):
            raise ValueError(f"{folder}: {name} reads back other than it was written; the disk may be damaged")


def loading(folder: Path) -> None:
    """Config, tokenizer and processor load."""
    from transformers import AutoConfig, AutoProcessor

    for part in (AutoConfig, AutoProcessor):
        try:
            part.from_pretrained(folder)
        except Exception as error:  # of many types, as files are missing or wrong in many ways
            raise ValueError(f"{folder}: {part.__name__} does not load it: {str(error).splitlines()[0]}") from error


def logits(folder: Path, *, base: Path, source: Iterable[tuple[str, Tensor]], census: Census) -> None:
    """The model that transformers loads from the folder scores as the trained one does: the base with the weights of
    `source` put into it, as the trainer does it. On the CPU, one model in memory at a time.

    Where memory holds no whole model, this is not compared, and a warning says so.
    """
    needed = census_bytes(census)
    if needed > memory_bytes():
        logger.warning(
            "%s: logits are not compared: the model takes %s, this machine has %s of memory",
            folder,
            size_text(needed),
            size_text(memory_bytes()),
        )
        return
    from transformers.utils import logging as chatter

    chatter.disable_progress_bar()
    spec = spec_of(base)
    prompt = _prompt(spec, folder)
    dtype = _main_dtype(census)
    policy = spec.policy(base, dtype, "cpu")
    _fill(policy, spec, source)
    expected = _logits(policy, prompt)
    del policy
    gc.collect()
    given = _logits(spec.policy(folder, dtype, "cpu"), prompt)
    difference = float((given - expected).abs().max() / expected.abs().max())
    if not difference <= MAX_DIFFERENCE:  # nor where it is not a number
        raise ValueError(
            f"{folder}: transformers loads a model whose logits differ from the trained one's by {difference:.1e} of "
            f"the largest (bound: {MAX_DIFFERENCE:g}): config.json and weights of {base} do not fit the checkpoint"
        )


def _main_dtype(census: Census) -> torch.dtype:
    """The one that most of the bytes are in."""
    sizes: Counter[torch.dtype] = Counter()
    for shape, dtype in census.values():
        sizes[dtype] += tensor_bytes(shape, dtype)
    return sizes.most_common(1)[0][0]


def memory_bytes() -> int:
    """Of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _prompt(spec: ModelSpec, folder: Path) -> Prompt:
    """A question about an image of two colours."""
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, 32:] = [255, 128, 0]
    parts: tuple[Any, ...] = (MediaPart(kind="image", ref=image), TextPart(text="What colour is the right half?"))
    task = Task(id="image", messages=(Message(role="user", parts=parts),), answer="", source="export")
    prompt = spec.renderer(folder, DataConfig(train=""), folder)(task)
    assert isinstance(prompt, Prompt)
    return prompt


@torch.no_grad()
def _fill(policy: Policy, spec: ModelSpec, source: Iterable[tuple[str, Tensor]]) -> None:
    """Round the tensors of the source into the parameters that learn."""
    views = {
        released: view
        for name, parameter in policy.trained().items()
        for released, view in spec.to_released(name, parameter.detach())
    }
    for released, tensor in source:
        views[released].copy_(tensor)


@torch.no_grad()
def _logits(policy: Policy, prompt: Prompt) -> Tensor:
    """f32[T, vocab]."""
    features = [policy.encode(item) for item in prompt.media]
    layout = Packed([0, len(prompt.token_ids)])
    hidden = policy.hidden(prompt.token_ids, prompt.positions, prompt.media, features, layout)
    return policy.head(hidden).float()
