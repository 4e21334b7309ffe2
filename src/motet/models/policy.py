"""What sampler and trainer need of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from motet.models.attention import Layout
from motet.types import IntArray, MediaItem


class Policy(Protocol):
    """A language model that learns, behind towers that do not. The tensors of all calls are on `device`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def language(self) -> Sequence[torch.nn.Module]:
        """The modules of the language model, which is all but the towers."""

    @property
    def layers(self) -> Sequence[torch.nn.Module]:
        """Its decoder layers, in order."""

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by name."""

    def towers_fingerprint(self) -> str:
        """Hash of the towers' weights: with the same fingerprint, the same clip has the same features."""

    def encode(self, item: MediaItem) -> Tensor:
        """Features [N, width] of one clip of N tokens."""

    def hidden(
        self,
        token_ids: IntArray | Tensor,
        positions: IntArray | Tensor,
        media: Sequence[MediaItem],
        features: Sequence[Tensor],
        layout: Layout,
    ) -> Tensor:
        """Final hidden states [T, H] of a packed row: ids [T], positions [3, T], clips and their features in order."""

    def head(self, hidden: Tensor) -> Tensor:
        """[N, H] -> logits [N, vocab]."""
