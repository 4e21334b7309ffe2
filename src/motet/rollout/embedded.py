"""The default engine: samples in this process, with the trainer's own module.

Requests that wait together are decoded together, as one wave: each distinct prompt is prefilled once, all in one
packed row, and its keys and values are shared out to its completions. Between two tokens the event loop runs, so a
training step may fall inside a wave; `Completion.versions` then spans both weights.

A completion's draws depend on (seed, key) alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from motet.batching.pack import laid_side_by_side
from motet.features.store import FeatureStore
from motet.models.attention import Decode, Prefill
from motet.models.policy import Policy
from motet.trainer.logprobs import banned_bias, distribution
from motet.types import Completion, IntArray, Prompt, Sampling, StopReason


@dataclass(eq=False, slots=True)
class Request:
    """A request, and what has been drawn for it."""

    prompt: Prompt
    sampling: Sampling
    draws: np.ndarray
    """f64[max_tokens], uniform in [0, 1)"""
    future: asyncio.Future[Completion]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    oldest: int = 0


class EmbeddedEngine:
    """`Engine` on the trainer's module.

    Args:
        policy: shared with the trainer.
        features: encoder outputs, shared with the trainer.
        decode_text: completion ids -> text.
        eos_ids: ids that end a completion.
        banned_ids: ids that are never drawn, see `Renderer.banned_ids`.
        max_sequences: decoded side by side.
    """

    def __init__(
        self,
        policy: Policy,
        features: FeatureStore,
        *,
        decode_text: Callable[[IntArray], str],
        eos_ids: Sequence[int],
        banned_ids: Sequence[int],
        max_sequences: int,
    ) -> None:
        self.version = 0
        self._policy = policy
        self._features = features
        self._decode_text = decode_text
        self._eos_ids = frozenset(eos_ids)
        self._bias = banned_bias(list(banned_ids), policy.vocab_size, policy.device)
        self._max_sequences = max_sequences
        self._waiting: list[Request] = []
        self._worker: asyncio.Task[None] | None = None
        self._running = asyncio.Event()
        self._running.set()

    async def generate(self, prompt: Prompt, sampling: Sampling, *, key: str) -> Completion:
        """Raises ValueError for top-p or top-k: log-probabilities of a truncated distribution are not the policy's."""
        if sampling.top_p < 1 or sampling.top_k:
            raise ValueError("rollout.top_p and rollout.top_k: the embedded engine samples from the whole distribution")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        draws = _draws(sampling.seed, key, sampling.max_tokens)
        self._waiting.append(Request(prompt, sampling, draws, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    async def suspend(self) -> None:
        """Stop before the next token. The module stays where it is, since the trainer shares it."""
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def _work(self) -> None:
        try:
            while self._waiting:
                wave, self._waiting = self._waiting[: self._max_sequences], self._waiting[self._max_sequences :]
                try:
                    await self._decode([s for s in wave if not s.future.done()])
                except Exception as error:
                    for sequence in wave:
                        if not sequence.future.done():
                            sequence.future.set_exception(error)
        finally:
            self._worker = None

    async def _decode(self, wave: list[Request]) -> None:
        if not wave:
            return
        prompts = list({s.prompt.digest: s.prompt for s in wave}.values())
        index = {prompt.digest: i for i, prompt in enumerate(prompts)}
        prompt_of = [index[s.prompt.digest] for s in wave]
        hidden, prefill = self._prefill(prompts)
        layout = Decode(prefill, prompt_of, max(s.sampling.max_tokens for s in wave))
        hidden = hidden[prompt_of]
        for sequence in wave:
            sequence.oldest = self.version
        active = list(wave)
        while active:
            await self._running.wait()
            await asyncio.sleep(0)
            going = self._draw(active, hidden)
            if len(going) < len(active):
                layout.keep(torch.tensor(going, dtype=torch.long, device=self._policy.device))
                active = [active[i] for i in going]
            if active:
                hidden = self._advance(active, layout)

    @torch.no_grad()
    def _prefill(self, prompts: list[Prompt]) -> tuple[Tensor, Prefill]:
        """Last hidden state of each prompt [P, H], and their keys and values."""
        bounds, media = laid_side_by_side([(len(p.token_ids), p.media) for p in prompts])
        layout = Prefill(bounds.tolist())
        hidden = self._policy.hidden(
            np.concatenate([p.token_ids for p in prompts]),
            np.concatenate([p.positions for p in prompts], axis=1),
            media,
            self._features(media),
            layout,
        )
        return hidden[torch.as_tensor(bounds[1:] - 1, dtype=torch.long, device=hidden.device)], layout

    @torch.no_grad()
    def _advance(self, active: list[Request], layout: Decode) -> Tensor:
        """Feed the token last drawn of each sequence; hidden states [B, H]."""
        ids = np.array([s.tokens[-1] for s in active])
        places = np.array([int(s.prompt.positions.max()) + len(s.tokens) for s in active])
        hidden = self._policy.hidden(ids, np.broadcast_to(places, (3, len(places))).copy(), (), (), layout)
        layout.advance()
        return hidden

    @torch.no_grad()
    def _draw(self, active: list[Request], hidden: Tensor) -> list[int]:
        """Draw one token for each sequence and settle those that end; indices of those that go on."""
        logits = self._policy.head(hidden)
        temperatures = torch.tensor([s.sampling.temperature or 1.0 for s in active], device=logits.device)
        logp = distribution(logits, temperature=temperatures[:, None], bias=self._bias)
        draws = torch.tensor([s.draws[len(s.tokens)] for s in active], device=logits.device)
        sampled = _inverse_transform(logp, draws)
        greedy = torch.tensor([s.sampling.temperature == 0 for s in active], device=logits.device)
        tokens = torch.where(greedy, logp.argmax(-1), sampled)
        chosen = logp.gather(-1, tokens[:, None]).squeeze(-1)
        going = []
        for i, (sequence, token, value) in enumerate(zip(active, tokens.tolist(), chosen.tolist(), strict=True)):
            sequence.tokens.append(token)
            sequence.logprobs.append(value)
            stop = self._stop(sequence)
            if stop is None and not sequence.future.cancelled():
                going.append(i)
            elif stop is not None and not sequence.future.done():
                sequence.future.set_result(self._completion(sequence, stop))
        return going

    def _stop(self, sequence: Request) -> StopReason | None:
        if sequence.tokens[-1] in self._eos_ids:
            return "eos"
        return "length" if len(sequence.tokens) == sequence.sampling.max_tokens else None

    def _completion(self, sequence: Request, stop: StopReason) -> Completion:
        token_ids = np.array(sequence.tokens, np.int32)
        return Completion(
            token_ids=token_ids,
            logprobs=np.array(sequence.logprobs, np.float32),
            mask=np.ones(len(token_ids), bool),
            stop=stop,
            versions=(sequence.oldest, self.version),
            text=self._decode_text(token_ids),
        )


def _draws(seed: int, key: str, num_draws: int) -> np.ndarray:
    digest = blake3(f"{seed}/{key}".encode()).digest(length=16)
    return np.random.default_rng(int.from_bytes(digest, "little")).random(num_draws)


def _inverse_transform(logp: Tensor, draws: Tensor) -> Tensor:
    """i64[B]: the first token whose cumulative probability exceeds the draw, in float64."""
    cumulative = logp.double().exp().cumsum(-1)
    cumulative = cumulative / cumulative[:, -1:]
    return torch.searchsorted(cumulative, draws.double()[:, None], right=True).squeeze(-1).clamp(max=logp.shape[-1] - 1)
