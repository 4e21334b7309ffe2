"""A model's weights as a stream of released tensors, with a census known before any byte moves.

Both ends of a transfer compare censuses first (`compare`), so that a tensor which one side lacks, or holds in another
shape, stops the transfer instead of leaving old weights in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
from torch import Tensor

ToReleased = Callable[[str, Tensor], Iterable[tuple[str, Tensor]]]
"""A family's mapping of one parameter in memory to released tensors, such as `qwen3_omni.names.to_released`."""
Census = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype by released name."""


class WeightSource:
    """Yields `(released name, tensor)`; the tensors are views of the parameters, so use each before the next step.

    Args:
        parameters: by name in memory: all of a module's, `dict(module.named_parameters())`, or those that learn.
        to_released: the family's name mapping.
    """

    def __init__(self, parameters: Mapping[str, Tensor], to_released: ToReleased) -> None:
        self._parameters = parameters
        self._to_released = to_released

    def census(self) -> Census:
        """What iteration will yield, in the same order."""
        census: Census = {}
        for name, parameter in self._parameters.items():
            outline = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            census |= {key: (tuple(view.shape), view.dtype) for key, view in self._to_released(name, outline)}
        return census

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._parameters.items():
            yield from self._to_released(name, parameter.detach())


def compare(expected: Census, given: Census) -> None:
    """Check that two censuses are equal.

    Raises:
        ValueError: names the first tensors that are missing, unexpected or of another shape or dtype.
    """
    faults = {
        "missing": [name for name in expected if name not in given],
        "unexpected": [name for name in given if name not in expected],
        "different": [
            f"{name} (expected {_outline(expected[name])}, given {_outline(given[name])})"
            for name in expected
            if name in given and expected[name] != given[name]
        ],
    }
    lines = [f"{len(names)} {kind}: {_first(names)}" for kind, names in faults.items() if names]
    if lines:
        raise ValueError("weights do not match: " + "; ".join(lines))


def _outline(entry: tuple[tuple[int, ...], torch.dtype]) -> str:
    shape, dtype = entry
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def _first(names: list[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
