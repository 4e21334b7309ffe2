"""A real Qwen3-Omni folder of about two million parameters, for laptops and tests.

Everything of the released family is there (config with `thinker_config`, per-expert weight names, special tokens,
processor, chat template), so transformers and vLLM load it offline. `build` then warms it up on toy rows, see
`motet.models.qwen3_omni.warm`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from motet.data import toy

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>", "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>",
    "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>",
    "<think>", "</think>", "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>",
    "<tts_text_bos_single>", "<|audio_pad|>",
)  # fmt: skip
CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' -%}<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'audio' -%}<|audio_start|><|audio_pad|><|audio_end|>
{%- else -%}{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
VOCAB_SIZE = 480
HIDDEN = 128
IMAGE_SIZE = 256
PIXELS = {"shortest_edge": 4 * 32 * 32, "longest_edge": 64 * 32 * 32}


def _corpus() -> list[str]:
    """Text that the tokenizer learns whole words from: bytes and words, each with and without a space before it."""
    words = [*toy.COLOURS, *toy.SHAPES, *toy.PITCHES, *toy.DIRECTIONS, "first", "second", "yes", "no"]
    questions = (
        "What colour is the shape? Which shape is in the image? What colour is the biggest shape? "
        "What pitch is the sound? Which sound is longer? Which way does the shape move? Do shape and tone agree? "
        "Tone high: which colour? Tone low: which shape? Which option says red?"
    )
    letters = "A " + " ".join(toy.LETTERS[:4])
    return [questions, letters, "system", "user", "assistant", *(f"{word} {word}" for word in words)] * 4


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(_corpus(), trainer)
    model = json.loads(trained.to_str())["model"]
    return Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(pair) for pair in model["merges"]],  # type: ignore[misc]
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,  # type: ignore[arg-type]
        additional_special_tokens=list(SPECIAL_TOKENS),
        model_specific_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "audio_token": "<|audio_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
        model_max_length=8192,
    )


def _processor() -> Any:
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
        Qwen3OmniMoeProcessor,
        WhisperFeatureExtractor,
    )

    vision = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "size": PIXELS}
    vision |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    tokenizer = _tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return Qwen3OmniMoeProcessor(
        image_processor=Qwen2VLImageProcessor(**vision),
        video_processor=Qwen2VLVideoProcessor(**vision, fps=2, min_frames=2, max_frames=16),
        feature_extractor=WhisperFeatureExtractor(
            feature_size=128,
            sampling_rate=16_000,
            hop_length=160,
            n_fft=400,
            chunk_length=30,
            return_attention_mask=True,
            padding_side="right",
            dither=0.0,
        ),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )


def _config(tokenizer: Any) -> Any:
    """Sizes obey what vLLM's CPU kernels and the towers ask for: text heads of 32, experts and hidden in multiples of
    32, 100-frame audio chunks, as many position embeddings as patches, no more DeepStack taps than text layers."""
    from transformers import Qwen3OmniMoeConfig

    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in (*SPECIAL_TOKENS, "system", "user", "assistant")}
    text = {
        "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "moe_intermediate_size": 64, "num_experts": 8,
        "num_experts_per_tok": 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "vocab_size": VOCAB_SIZE, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "initializer_range": 0.08,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
            "interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "depth": 4, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "out_hidden_size": HIDDEN,
        "image_size": IMAGE_SIZE, "num_position_embeddings": (IMAGE_SIZE // 16) ** 2,
        "apply_vit_abs_pos_embed": True, "deepstack_visual_indexes": [0, 1, 2], "initializer_range": 0.1,
    }  # fmt: skip
    audio = {
        "num_mel_bins": 128, "encoder_layers": 2, "encoder_attention_heads": 4, "d_model": 64, "encoder_ffn_dim": 128,
        "output_dim": HIDDEN, "n_window": 50, "n_window_infer": 800, "conv_chunksize": 500,
        "downsample_hidden_size": 16, "max_source_positions": 1500, "initializer_range": 0.1,
    }  # fmt: skip
    thinker = {
        "text_config": text, "vision_config": vision, "audio_config": audio,
        "audio_token_id": ids["<|audio_pad|>"], "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"], "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"], "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"], "position_id_per_seconds": 13, "seconds_per_chunk": 2,
        "user_token_id": ids["user"], "initializer_range": 0.05, "dtype": "float32",
    }  # fmt: skip
    return Qwen3OmniMoeConfig(
        thinker_config=thinker,
        enable_audio_output=False,  # no talker in this folder
        im_start_token_id=ids["<|im_start|>"],
        im_end_token_id=ids["<|im_end|>"],
        tts_pad_token_id=ids["<tts_pad>"],
        tts_bos_token_id=ids["<tts_text_bos>"],
        tts_eos_token_id=ids["<tts_text_eod>"],
        system_token_id=ids["system"],
        user_token_id=ids["user"],
        assistant_token_id=ids["assistant"],
        dtype="float32",
        architectures=["Qwen3OmniMoeForConditionalGeneration"],
    )


def _spread(model: torch.nn.Module, seed: int) -> None:
    """Move norms, biases, routers and experts off their defaults, so that parity tests see every weight."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(1 + 0.1 * noise if name.endswith("weight") else 0.05 * noise)
            elif "mlp.gate.weight" in name or "experts" in name:
                parameter.copy_(0.1 * noise)
            elif "pos_embed" in name:
                parameter.copy_(0.5 * noise)  # or the vision tower is slow to see where a thing is


def write_random(path: Path | str, *, seed: int = 0) -> None:
    """Write the folder with random weights."""
    from transformers import GenerationConfig, Qwen3OmniMoeForConditionalGeneration
    from transformers.utils import logging

    logging.disable_progress_bar()
    processor = _processor()

    tokenizer = processor.tokenizer
    torch.manual_seed(seed)
    model = Qwen3OmniMoeForConditionalGeneration(_config(tokenizer)).eval()
    _spread(model, seed)
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = GenerationConfig(eos_token_id=[end, pad], pad_token_id=pad, do_sample=True)
    model.save_pretrained(path)
    processor.save_pretrained(path)


def build(path: Path | str, *, seed: int = 0, warm_steps: int = 320) -> None:
    """Write the folder and warm it up; `warm_steps = 0` leaves it random. Deterministic by seed."""
    write_random(path, seed=seed)
    if warm_steps:
        from motet.models.qwen3_omni import warm

        warm.start(Path(path), seed=seed, num_steps=warm_steps)
