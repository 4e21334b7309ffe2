"""Sample from stock vLLM, in a process of its own: `python sample.py CHECKPOINT FOLDER`.

    FOLDER/requests.json   {"banned_ids": [...], "requests": [{"prompt": text, "media": {kind: [name of an array, ...]},
                            "processor": kwargs of the model's processor}, ...]}
    FOLDER/media.npz       the arrays: images u8[H, W, 3], videos u8[F, H, W, 3], sounds f32[N] at 16 kHz
    FOLDER/answers.json    written: for every request {"prompt_token_ids": [P], "completions": [{"token_ids": [C],
                            "logprobs": [C]}, ...]}

The prompt has one placeholder per clip; vLLM's own processor expands it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from vllm import LLM, RequestOutput, SamplingParams

NUM_COMPLETIONS = 2
MAX_TOKENS = 16


def main(checkpoint: str, folder: Path) -> None:
    asked = json.loads((folder / "requests.json").read_text())
    llm = LLM(
        checkpoint,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=4,
        max_num_batched_tokens=4096,
        limit_mm_per_prompt={"image": 4, "video": 1, "audio": 2},
        kv_cache_memory_bytes=64 << 20,
        enforce_eager=True,
        distributed_executor_backend="uni",
        logprobs_mode="processed_logprobs",
        seed=0,
    )
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    sampling = SamplingParams(
        n=NUM_COMPLETIONS,
        max_tokens=MAX_TOKENS,
        temperature=1.0,
        seed=0,
        logprobs=0,
        ignore_eos=True,
        allowed_token_ids=sorted(set(range(vocab_size)) - set(asked["banned_ids"])),
    )
    with np.load(folder / "media.npz") as arrays:
        prompts = [_prompt(request, arrays) for request in asked["requests"]]
    # One at a time: vLLM runs the audio tower on all sounds of a step together, and pads those under a second to the
    # longest of them, so that what it scores depends on the company.
    answers = [_answer(llm.generate([prompt], sampling, use_tqdm=False)[0]) for prompt in prompts]
    (folder / "answers.json").write_text(json.dumps(answers))


def _prompt(request: dict[str, Any], arrays: Any) -> Any:
    media = {kind: [arrays[name] for name in names] for kind, names in request["media"].items()}
    if "image" in media:
        media["image"] = [Image.fromarray(pixels) for pixels in media["image"]]
    return {"prompt": request["prompt"], "multi_modal_data": media, "mm_processor_kwargs": request["processor"]}


def _answer(output: RequestOutput) -> dict[str, Any]:
    completions = [
        {
            "token_ids": list(completion.token_ids),
            "logprobs": [
                step[token].logprob for step, token in zip(completion.logprobs, completion.token_ids, strict=True)
            ],
        }
        for completion in output.outputs
    ]
    return {"prompt_token_ids": output.prompt_token_ids, "completions": completions}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
