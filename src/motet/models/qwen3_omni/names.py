"""The one mapping between a Thinker's parameters in memory and the tensors of a released checkpoint.

    in memory (transformers)                               released
    model.layers.L.mlp.experts.gate_up_proj  [E, 2I, H]    thinker.model.layers.L.mlp.experts.e.gate_proj.weight  [I, H]
                                                           thinker.model.layers.L.mlp.experts.e.up_proj.weight    [I, H]
    model.layers.L.mlp.experts.down_proj     [E, H, I]     thinker.model.layers.L.mlp.experts.e.down_proj.weight  [H, I]
    any other name                                         thinker.<name>

It is written once, as views of the tensor in memory: reading them streams a model out, writing them fills it, and on
a tensor without storage they are the census.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from motet.config.schema import LoraConfig
from motet.models.lora import Targets

PREFIX = "thinker."


def tied(config: Mapping[str, Any]) -> dict[str, str]:
    """Released names of tensors that are others under a second name, by the folder's config.

    >>> tied({"thinker_config": {"tie_word_embeddings": True}})
    {'thinker.lm_head.weight': 'thinker.model.embed_tokens.weight'}
    """
    ties = config["thinker_config"].get("tie_word_embeddings", False)
    return {f"{PREFIX}lm_head.weight": f"{PREFIX}model.embed_tokens.weight"} if ties else {}


def to_released(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The released tensors that a parameter in memory holds, as views of it: no byte is copied."""
    layer, experts, projection = name.rpartition("mlp.experts.")
    if not experts:
        yield PREFIX + name, tensor
        return
    for e, expert in enumerate(tensor):
        released = f"{PREFIX}{layer}{experts}{e}."
        if projection == "down_proj":
            yield f"{released}down_proj.weight", expert
        else:
            assert projection == "gate_up_proj", name
            gate, up = expert.chunk(2)
            yield f"{released}gate_proj.weight", gate
            yield f"{released}up_proj.weight", up


def released_names(name: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the released tensors that a parameter holds, from its shape alone."""
    views = to_released(name, torch.empty(shape, device="meta"))
    return [(released, tuple(view.shape)) for released, view in views]


@torch.no_grad()
def from_released(name: str, tensor: Tensor, read: Callable[[str], Tensor]) -> None:
    """Fill a parameter in memory from the released tensors, one at a time; `read` gets one by its name.

    Raises:
        ValueError: a released tensor has another shape than its place in the parameter.
    """
    for released, view in to_released(name, tensor):
        given = read(released)
        if given.shape != view.shape:
            raise ValueError(
                f"{released} is {list(given.shape)} in the checkpoint and {list(view.shape)} in the model: "
                "config.json and weights are not of the same model"
            )
        view.copy_(given)


def lora_targets(config: LoraConfig) -> Targets:
    """What `motet.models.lora` adapts in a Thinker."""
    return Targets(
        layers=("q_proj", "k_proj", "v_proj", "o_proj") if "attention" in config.targets else (),
        tensors=("mlp.experts.gate_up_proj", "mlp.experts.down_proj") if "experts" in config.targets else (),
        except_in=r"(visual|audio_tower)\..*",
    )
