"""The Thinker alone, as transformers releases it: towers frozen, packed rows in, hidden states out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from blake3 import blake3
from torch import Tensor

from motet.config.schema import LoraConfig
from motet.models.attention import NAME, Layout
from motet.models.lora import adapters, add_adapters
from motet.models.qwen3_omni import names
from motet.types import IntArray, MediaItem, MediaKind

TOWERS = ("visual.", "audio_tower.")


class Thinker:
    """`Qwen3OmniMoeThinkerForConditionalGeneration` behind three calls: `encode`, `hidden`, `head`.

    The language model attends through `motet.models.attention`; the towers keep SDPA, one call per window, so the
    audio tower's attention stays windowed. The talker and code2wav of the checkpoint are not loaded.

    Args:
        lora: adapters to put in, drawn under `seed`; they alone are trained then.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        lora: LoraConfig | None = None,
        seed: int = 0,
    ) -> None:
        from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

        module = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(path, dtype=dtype)
        self.module: Any = module.eval()
        self._has_adapters = lora is not None
        if lora is not None:
            add_adapters(self.module, lora, names.lora_targets(lora), seed=seed)
        self.module.to(device)
        self.module.set_attn_implementation({"text_config": NAME})
        self.module.set_experts_implementation({"text_config": "grouped_mm"})
        self.module.requires_grad_(False)
        for parameter in self.trained().values():
            parameter.requires_grad_(True)
        config = module.config
        self._pad_ids: dict[MediaKind, int] = {
            "image": config.image_token_id,
            "video": config.video_token_id,
            "audio": config.audio_token_id,
        }

    @property
    def device(self) -> torch.device:
        return self.module.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.module.lm_head.weight.dtype

    @property
    def vocab_size(self) -> int:
        return self.module.lm_head.weight.shape[0]

    @property
    def language(self) -> list[torch.nn.Module]:
        return [self.module.model, self.module.lm_head]

    @property
    def layers(self) -> list[torch.nn.Module]:
        return list(self.module.model.layers)

    def towers_fingerprint(self) -> str:
        """Hash of the towers' weights and of what else their outputs depend on.

        With the same fingerprint, the same clip has the same features, in another process too.
        """
        hasher = blake3(f"{torch.__version__} {transformers.__version__} {self.device.type}".encode())
        for tower in (self.module.visual, self.module.audio_tower):
            hasher.update(tower.config.to_json_string().encode())
        for name, tensor in self.module.state_dict().items():
            if name.startswith(TOWERS):
                hasher.update(name.encode())
                hasher.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()

    def trained(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that learn, by their name in the module: all but the towers', or the adapters alone."""
        if self._has_adapters:
            return adapters(self.module)
        return {n: p for n, p in self.module.named_parameters() if not n.startswith(TOWERS)}

    def encode(self, item: MediaItem) -> Tensor:
        """Run the tower on one clip.

        Returns [N, H] for sound; for pictures [N, H * (1 + K)], the embedding followed by its K DeepStack features:
        the layout in which vLLM keeps encoder outputs. One clip at a time, since the audio tower pads a clip to the
        longest of its batch, and the result must not depend on the company.
        """
        return (self.encode_audios if item.kind == "audio" else self.encode_visuals)([item])[0]

    def encode_visuals(self, items: Sequence[MediaItem]) -> list[Tensor]:
        names = [("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")]
        pairs = [names[item.kind == "video"] for item in items]
        pixels = self._stack(item.features[name] for item, (name, _) in zip(items, pairs, strict=True))
        grids = self._stack(item.features[name] for item, (_, name) in zip(items, pairs, strict=True))
        output = self.module.visual(pixels.to(self.dtype), grid_thw=grids)
        values = torch.cat([output.pooler_output, *output.deepstack_features], dim=-1)
        return list(values.split([item.num_tokens for item in items]))

    def encode_audios(self, items: Sequence[MediaItem]) -> list[Tensor]:
        frames = [item.features["input_features"][0][:, _valid(item)] for item in items]
        lengths = torch.tensor([f.shape[1] for f in frames], device=self.device)
        mel = self._stack(f.T for f in frames).T
        output = self.module.audio_tower(mel.to(self.dtype), feature_lens=lengths).last_hidden_state
        return list(output.split([item.num_tokens for item in items]))

    def _stack(self, arrays: Iterable[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(list(arrays))).to(self.device)

    def hidden(
        self,
        token_ids: IntArray | Tensor,
        positions: IntArray | Tensor,
        media: Sequence[MediaItem],
        features: Sequence[Tensor],
        layout: Layout,
    ) -> Tensor:
        """Final hidden states of a packed row.

        Args:
            token_ids: i64[T].
            positions: i64[3, T].
            media: clips of the row, spans relative to the row.
            features: `encode` of each clip, in the same order.
            layout: which token sees which.

        Returns: [T, H].

        Raises ValueError where the clips' spans are not all placeholders of the row, and nothing else: embeddings of
        bare placeholders mean nothing, and nobody would notice.
        """
        self._check_covered(token_ids, media)
        ids = torch.as_tensor(token_ids, dtype=torch.long, device=self.device)
        embeds = self.module.model.embed_tokens(ids)
        visual_mask, deepstack = None, None
        if media:
            places = [self._places(item) for item in media]
            values = [f[:, : embeds.shape[1]] for f in features]
            for item, place, value in zip(media, places, values, strict=True):
                assert len(place) == len(value), f"{item.kind} {item.raw!r}: {len(place)} tokens, {len(value)} features"
            embeds = embeds.index_copy(0, torch.cat(places), torch.cat(values).to(embeds.dtype))
            visual = [i for i, item in enumerate(media) if item.kind != "audio"]
            if visual:
                visual_mask = torch.zeros(1, len(ids), dtype=torch.bool, device=self.device)
                visual_mask[0, torch.cat([places[i] for i in visual])] = True
                taps = torch.cat([features[i][:, embeds.shape[1] :] for i in visual])
                deepstack = list(taps.split(embeds.shape[1], dim=1))
        output = self.module.model(
            inputs_embeds=embeds[None],
            position_ids=torch.as_tensor(positions, dtype=torch.long, device=self.device)[:, None],
            visual_pos_masks=visual_mask,
            deepstack_visual_embeds=deepstack,
            use_cache=False,
            layout=layout,
        )
        return output.last_hidden_state[0]

    def head(self, hidden: Tensor) -> Tensor:
        """[N, H] -> logits [N, vocab]."""
        return self.module.lm_head(hidden)

    def _check_covered(self, token_ids: IntArray | Tensor, media: Sequence[MediaItem]) -> None:
        ids = torch.as_tensor(token_ids).cpu().numpy()
        for kind, pad in self._pad_ids.items():
            spans = [np.arange(s, s + n) for item in media if item.kind == kind for s, n in item.spans]
            pads, covered = np.flatnonzero(ids == pad), np.concatenate([np.empty(0, np.int64), *spans])
            if bare := sorted({*pads.tolist()} - {*covered.tolist()}):
                raise ValueError(
                    f"token {bare[0]} of {len(ids)}: a placeholder of {kind} without features; a clip is lost"
                )
            if len(covered) != len(pads):
                raise ValueError(f"{len(covered)} features of {kind} for {len(pads)} placeholders; spans are misplaced")

    def _places(self, item: MediaItem) -> Tensor:
        return torch.cat([torch.arange(s, s + n) for s, n in item.spans]).to(self.device)


def _valid(item: MediaItem) -> np.ndarray:
    return item.features["feature_attention_mask"][0].astype(bool)
