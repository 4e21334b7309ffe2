"""How the embedded engine works; what every engine keeps is in tests/contract/test_engine.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from motet.batching.pack import pack
from motet.batching.samples import extend_positions, samples
from motet.features.store import FeatureStore
from motet.models.attention import Packed
from motet.models.qwen3_omni.thinker import Thinker
from motet.rollout.embedded import EmbeddedEngine, _draws, _inverse_transform
from motet.trainer.torch_ import TorchTrainer
from motet.types import Advantages, Completion, Group, Prompt, Sampling, Score, Task

MakeEngine = Callable[..., EmbeddedEngine]
LONG = Sampling(max_tokens=6)
T = TypeVar("T")


def within_seconds(main: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        async with asyncio.timeout(20):
            return await main

    return asyncio.run(limited())


def run(*asked: Awaitable[Completion]) -> list[Completion]:
    async def together() -> list[Completion]:
        return list(await asyncio.gather(*asked))

    return within_seconds(together())


def tokens(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in completions]


async def ticks(num: int) -> None:
    for _ in range(num):
        await asyncio.sleep(0)


@dataclass
class Watched:
    """The policy, and how many tokens each pass had. `louder` is added to its logits, `error` raised."""

    policy: Thinker
    louder: Tensor | float = 0.0
    error: Exception | None = None
    passes: list[int] = field(default_factory=list)

    def hidden(self, token_ids: np.ndarray, *rest: Any) -> Tensor:
        self.passes.append(len(token_ids))
        if self.error:
            raise self.error
        return self.policy.hidden(token_ids, *rest)

    def head(self, hidden: Tensor) -> Tensor:
        return self.policy.head(hidden) + self.louder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)


@pytest.fixture
def watched(thinker: Thinker) -> Watched:
    return Watched(thinker)


# ---- drawing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "token"),
    [(0.0, 1), (0.2499, 1), (0.2501, 3), (0.7499, 3), (0.7501, 4), (1 - 2**-53, 4)],
)
def test_a_token_is_drawn_where_the_draw_falls(draw: float, token: int) -> None:
    """Probabilities 0, 1/4, 0, 1/2, 1/4 and 0: what has none is never drawn, at either end nor between."""
    logp = torch.tensor([[-torch.inf, log(1 / 4), -torch.inf, log(1 / 2), log(1 / 4), -torch.inf]])
    assert _inverse_transform(logp, torch.tensor([draw], dtype=torch.float64)).tolist() == [token]


def test_draws_are_uniform_and_of_their_seed_and_key_alone() -> None:
    draws = _draws(3, "12/0", 4000)
    assert draws.dtype == np.float64 and draws.min() >= 0 and draws.max() < 1
    assert np.histogram(draws, 4, (0, 1))[0].tolist() == pytest.approx([1000] * 4, abs=100)
    assert _draws(3, "12/0", 5).tolist() == draws[:5].tolist()
    for seed, key in ((4, "12/0"), (3, "12/1"), (31, "2/0")):
        assert not np.isin(_draws(seed, key, 5), draws).any()


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_tokens_come_as_often_as_their_probability_says(
    make_engine: MakeEngine, prompts: dict[str, Prompt], thinker: Thinker, renderer: Any, temperature: float
) -> None:
    """Pearson's chi-squared over the tokens that should come at least five times, and all others as one."""
    num, prompt = 1000, prompts["text"]
    with torch.no_grad():
        layout = Packed([0, len(prompt.token_ids)])
        logits = thinker.head(thinker.hidden(prompt.token_ids, prompt.positions, (), (), layout))[-1]
    logits[renderer.banned_ids] = -torch.inf
    expected = num * (logits / temperature).softmax(-1).numpy()
    engine, sampling = make_engine(max_sequences=num), Sampling(max_tokens=1, temperature=temperature)
    drawn = run(*(engine.generate(prompt, sampling, key=str(i)) for i in range(num)))
    counts = np.bincount([c.token_ids[0] for c in drawn], minlength=len(expected))
    often = expected >= 5
    expected, counts = (np.append(x[often], x[~often].sum()) for x in (expected, counts))
    freedom = len(counts) - 1
    assert freedom > 10
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 4 * (2 * freedom) ** 0.5


def test_every_token_is_the_one_that_its_own_draw_falls_on(
    make_engine: MakeEngine, prompts: dict[str, Prompt], thinker: Thinker, features: FeatureStore
) -> None:
    prompt, num = prompts["image_colour"], len(prompts["image_colour"].token_ids)
    engine = make_engine(eos_ids=[], banned_ids=[])
    (completion,) = run(engine.generate(prompt, Sampling(max_tokens=8, seed=5), key="3/1"))
    ids = np.concatenate([prompt.token_ids, completion.token_ids])
    with torch.no_grad():
        places = extend_positions(prompt.positions, 8)
        states = thinker.hidden(ids, places, prompt.media, features(prompt.media), Packed([0, len(ids)]))
        reached = thinker.head(states[num - 1 : -1]).double().softmax(-1).cumsum(-1).numpy()
    draws, rows = _draws(5, "3/1", 8), range(8)
    assert (draws < reached[rows, completion.token_ids] + 1e-5).all()
    assert (draws > reached[rows, completion.token_ids - 1] - 1e-5).all()


def test_banned_ids_are_not_drawn_however_loud_they_are(
    make_engine: MakeEngine, prompts: dict[str, Prompt], renderer: Any, watched: Watched
) -> None:
    watched.louder = torch.zeros(watched.vocab_size).index_fill(0, torch.tensor(renderer.banned_ids), 1000.0)
    for banned, num, expected in (([], 1, True), (renderer.banned_ids, 6, False)):  # the model refuses to read one
        engine = make_engine(watched, banned_ids=banned, eos_ids=[])
        for sampling in (Sampling(max_tokens=num), Sampling(max_tokens=num, temperature=0)):
            (completion,) = run(engine.generate(prompts["image_colour"], sampling, key="k"))
            assert np.isin(completion.token_ids, renderer.banned_ids).tolist() == [expected] * num
            assert np.isfinite(completion.logprobs).all()


def test_each_request_is_sampled_as_it_asks(make_engine: MakeEngine, prompts: dict[str, Prompt]) -> None:
    """Temperatures, lengths and seeds of one wave do not mix."""
    asked = [
        (prompts["text"], Sampling(max_tokens=6, temperature=0.2)),
        (prompts["text"], Sampling(max_tokens=3, temperature=1.5)),
        (prompts["text"], Sampling(max_tokens=5, temperature=0)),
        (prompts["image_audio"], Sampling(max_tokens=4, seed=9)),
    ]
    engine = make_engine(eos_ids=[])
    together = run(*(engine.generate(prompt, sampling, key="k") for prompt, sampling in asked))
    alone = [run(engine.generate(prompt, sampling, key="k"))[0] for prompt, sampling in asked]
    assert tokens(together) == tokens(alone)
    assert [len(c.token_ids) for c in together] == [6, 3, 5, 4]
    for ours, theirs in zip(together, alone, strict=True):
        np.testing.assert_allclose(ours.logprobs, theirs.logprobs, rtol=0, atol=1e-5)


def test_a_shorter_completion_is_the_beginning_of_a_longer_one(
    make_engine: MakeEngine, prompts: dict[str, Prompt]
) -> None:
    engine = make_engine(eos_ids=[])
    asked = (engine.generate(prompts["text"], Sampling(max_tokens=n), key="k") for n in (4, 9))
    short, long = tokens(run(*asked))
    assert short == long[:4]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_log_probabilities_equal_those_of_the_trainer(
    make_engine: MakeEngine,
    make_trainer: Callable[..., TorchTrainer],
    prompts: dict[str, Prompt],
    toy_tasks: dict[str, Task],
    temperature: float,
) -> None:
    engine = make_engine()
    sampling = Sampling(max_tokens=8, temperature=temperature)
    completions = run(*(engine.generate(prompt, sampling, key=kind) for kind, prompt in prompts.items()))
    learned = []
    for (kind, prompt), completion in zip(prompts.items(), completions, strict=True):
        group = Group(id=0, task=toy_tasks[kind], prompt=prompt, completions=[completion], scores=[Score(value=1.0)])
        learned += samples(group, Advantages(values=np.ones(1, np.float32)))
    batch = pack(learned, row_tokens=150)
    scored = asyncio.run(make_trainer(temperature=temperature).logprobs(batch))
    assert len(batch.grid) > 1
    for (ours,), (micro,) in zip(scored, batch.grid, strict=True):
        np.testing.assert_allclose(ours, micro.logprobs, rtol=0, atol=1e-5)


def test_a_completion_says_what_was_drawn(make_engine: MakeEngine, prompts: dict[str, Prompt], renderer: Any) -> None:
    (completion,) = run(make_engine(eos_ids=[]).generate(prompts["text"], LONG, key="k"))
    assert completion.text == renderer.decode(completion.token_ids) != ""
    assert [a.dtype for a in (completion.token_ids, completion.logprobs, completion.mask)] == [
        np.int32,
        np.float32,
        np.bool_,
    ]
    assert (completion.logprobs < 0).all() and completion.mask.tolist() == [True] * 6


# ---- waves -------------------------------------------------------------------------------------


def test_a_prompt_is_prefilled_once_for_all_its_completions(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    engine = make_engine(watched, eos_ids=[])
    asked = [prompts[kind] for kind in ("text", "image_audio", "text", "text")]
    run(*(engine.generate(prompt, Sampling(max_tokens=3), key=str(i)) for i, prompt in enumerate(asked)))
    both = len(prompts["text"].token_ids) + len(prompts["image_audio"].token_ids)
    assert watched.passes == [both, 4, 4]  # the last token of a completion is not fed back


def test_a_wave_shrinks_as_its_sequences_end(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    engine = make_engine(watched, eos_ids=[])
    asked = (engine.generate(prompts["text"], Sampling(max_tokens=n), key=str(n)) for n in (1, 4, 2, 4))
    run(*asked)
    assert watched.passes[1:] == [3, 2, 2]


def test_who_does_not_fit_waits_for_the_next_wave(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    engine = make_engine(watched, eos_ids=[], max_sequences=2)
    run(*(engine.generate(prompts["text"], Sampling(max_tokens=2), key=str(i)) for i in range(5)))
    num = len(prompts["text"].token_ids)
    assert watched.passes == [num, 2, num, 2, num, 1]


def test_who_is_cancelled_is_decoded_no_further(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    async def main() -> None:
        engine = make_engine(watched, eos_ids=[], max_sequences=2)
        kinds = ("text", "text", "image_colour", "text")
        asked = [asyncio.create_task(engine.generate(prompts[k], LONG, key=str(i))) for i, k in enumerate(kinds)]
        while len(watched.passes) < 3:
            await asyncio.sleep(0)
        asked[0].cancel()  # in the wave
        asked[2].cancel()  # waiting for the next, for which it is not even prefilled
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in done] == [asyncio.CancelledError, Completion] * 2
        num = len(prompts["text"].token_ids)
        assert watched.passes == [num, 2, 2, 1, 1, 1, num, 1, 1, 1, 1, 1]

    within_seconds(main())


def test_where_all_are_cancelled_the_engine_rests_and_serves_again(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    async def main() -> None:
        engine = make_engine(watched, eos_ids=[])
        asked = [asyncio.create_task(engine.generate(prompts["text"], LONG, key=str(i))) for i in range(2)]
        while len(watched.passes) < 2:
            await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        await ticks(5)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        num_passes = len(watched.passes)
        assert num_passes <= 3
        assert len((await engine.generate(prompts["text"], LONG, key="0")).token_ids) == 6

    within_seconds(main())


def test_what_the_model_raises_reaches_every_request_that_waits(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    error = RuntimeError("out of memory")

    async def main() -> None:
        engine = make_engine(watched, max_sequences=2)
        watched.error = error
        asked = [engine.generate(prompts["text"], LONG, key=str(i)) for i in range(5)]  # three waves
        assert await asyncio.gather(*asked, return_exceptions=True) == [error] * 5
        await ticks(2)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        watched.error = None
        assert isinstance(await engine.generate(prompts["text"], LONG, key="0"), Completion)

    within_seconds(main())


def test_suspended_the_model_stands_still_and_goes_on_where_it_was(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    async def main() -> list[int]:
        engine = make_engine(watched, eos_ids=[])
        task = asyncio.create_task(engine.generate(prompts["text"], LONG, key="k"))
        while len(watched.passes) < 3:
            await asyncio.sleep(0)
        await engine.suspend()
        await ticks(20)
        assert not task.done() and len(watched.passes) <= 4
        await engine.resume()
        return (await task).token_ids.tolist()

    expected = tokens(run(make_engine(eos_ids=[]).generate(prompts["text"], LONG, key="k")))
    assert [within_seconds(main())] == expected


def test_versions_are_the_oldest_and_the_newest_that_drew(
    make_engine: MakeEngine, prompts: dict[str, Prompt], watched: Watched
) -> None:
    async def main() -> None:
        engine = make_engine(watched, eos_ids=[], max_sequences=2)
        engine.version = 4
        lengths = (1, 6, 6)  # done before the weights change, over it, and begun after it
        asked = [
            asyncio.create_task(engine.generate(prompts["text"], Sampling(max_tokens=n), key=str(i)))
            for i, n in enumerate(lengths)
        ]
        while len(watched.passes) < 3:
            await asyncio.sleep(0)
        engine.version = 5
        assert [c.versions for c in await asyncio.gather(*asked)] == [(4, 4), (4, 5), (5, 5)]

    within_seconds(main())


# ---- features ----------------------------------------------------------------------------------


def test_a_tower_runs_once_a_clip_for_eight_completions_two_epochs_and_the_trainer(
    make_engine: MakeEngine,
    make_trainer: Callable[..., TorchTrainer],
    random_checkpoint: Any,
    prompts: dict[str, Prompt],
    toy_tasks: dict[str, Task],
) -> None:
    model = Thinker(random_checkpoint)
    encoded: list[str] = []

    def encode(item: Any) -> Tensor:
        encoded.append(item.hash)
        return model.encode(item)

    store = FeatureStore(encode, fingerprint=model.towers_fingerprint())
    engine, trainer = make_engine(model, store), make_trainer(model, store=store, max_initial_mismatch=1)
    kinds = ("text", "images_colour", "video_agree", "image_audio")
    for epoch in range(2):
        asked = [
            engine.generate(prompts[kind], Sampling(max_tokens=2), key=f"{epoch}/{kind}/{i}")
            for kind in kinds
            for i in range(8)
        ]
        completions = run(*asked)
        learned = []
        for i, kind in enumerate(kinds):
            group = Group(
                id=i,
                task=toy_tasks[kind],
                prompt=prompts[kind],
                completions=completions[8 * i : 8 * i + 8],
                scores=[Score(value=0.0)] * 8,
            )
            learned += samples(group, Advantages(values=np.linspace(-1, 1, 8, dtype=np.float32)))
        asyncio.run(trainer.step(pack(learned, row_tokens=500)))
    clips = {item.hash for kind in kinds for item in prompts[kind].media}
    assert len(clips) >= 6
    assert sorted(encoded) == sorted(clips)
    assert store.num_encoded == len(clips)
