"""What the released transformers makes of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from motet.models.qwen3_omni.render import Renderer
    from motet.types import Prompt


@pytest.fixture(scope="session")
def reference_positions(renderer: Renderer) -> Callable[[Prompt], np.ndarray]:
    """f32[3, P] of the installed transformers, from ids and features. Its videos all have sound, or none has."""
    import torch
    from transformers import Qwen3OmniMoeThinkerConfig, Qwen3OmniMoeThinkerForConditionalGeneration

    Thinker: Any = Qwen3OmniMoeThinkerForConditionalGeneration  # its two functions take any object with the config
    model = SimpleNamespace(config=Qwen3OmniMoeThinkerConfig(**renderer.config), spatial_merge_size=2)
    model.get_llm_pos_ids_for_vision = partial(Thinker.get_llm_pos_ids_for_vision, model)
    sound_begins = renderer.tokenizer.convert_tokens_to_ids("<|audio_start|>")

    def positions(prompt: Prompt) -> np.ndarray:
        def gather(name: str) -> torch.Tensor | None:
            values = [torch.from_numpy(item.features[name]) for item in prompt.media if name in item.features]
            return torch.cat(values) if values else None

        masks = [item.features["feature_attention_mask"] for item in prompt.media if item.kind == "audio"]
        ids = torch.from_numpy(prompt.token_ids.astype(np.int64))[None]
        places, _ = Thinker.get_rope_index(
            model,
            ids,
            gather("image_grid_thw"),
            gather("video_grid_thw"),
            torch.ones_like(ids),
            any(item.kind == "video" and ids[0, item.spans[0][0] - 1] == sound_begins for item in prompt.media),
            torch.tensor([int(mask.sum()) for mask in masks]),
            gather("video_second_per_grid"),
        )
        return places[:, 0].numpy()

    return positions
