"""What every `Engine` keeps, asked of the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from motet.models.attention import Packed
from motet.trainer.logprobs import banned_bias, distribution
from motet.types import Completion, Prompt, Sampling

MakeEngine = Callable[..., Any]


def ask(engine: Any, *requests: tuple[Prompt, Sampling, str]) -> list[Completion]:
    """All requests at once."""

    async def main() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(p, s, key=k) for p, s, k in requests))

    return asyncio.run(main())


def score(
    thinker: Any, features: Any, prompt: Prompt, token_ids: np.ndarray, banned_ids: list[int], temperature: float
) -> np.ndarray:
    """Log-probabilities f32[C] of a completion in one packed row, as the trainer computes them."""
    ids = np.concatenate([prompt.token_ids, token_ids])
    after = prompt.positions.max() + 1 + np.arange(len(token_ids))
    places = np.concatenate([prompt.positions, np.broadcast_to(after, (3, len(token_ids)))], axis=1)
    with torch.no_grad():
        hidden = thinker.hidden(ids, places, prompt.media, features(prompt.media), Packed([0, len(ids)]))
        bias = banned_bias(banned_ids, thinker.vocab_size, thinker.device)
        logp = distribution(thinker.head(hidden[len(prompt.token_ids) - 1 : -1]), temperature=temperature, bias=bias)
    return logp[torch.arange(len(token_ids)), torch.as_tensor(token_ids, dtype=torch.long)].numpy()


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_logprobs_are_those_of_the_distribution_sampled_from_for_every_kind(
    make_engine: MakeEngine, prompts: dict[str, Prompt], thinker: Any, features: Any, renderer: Any, temperature: float
) -> None:
    sampling = Sampling(max_tokens=12, temperature=temperature)
    completions = ask(make_engine(), *((prompt, sampling, kind) for kind, prompt in prompts.items()))
    assert len(completions) == 9
    for (kind, prompt), completion in zip(prompts.items(), completions, strict=True):
        expected = score(thinker, features, prompt, completion.token_ids, renderer.banned_ids, temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-5, err_msg=kind)


def test_a_draw_depends_on_seed_and_key_and_not_on_the_company(make_engine: MakeEngine, prompts: Any) -> None:
    prompt, other = prompts["video_agree"], prompts["text"]
    sampling = Sampling(max_tokens=8, seed=3)
    (alone,) = ask(make_engine(), (prompt, sampling, "1/0"))
    beside = ask(make_engine(), (other, sampling, "0/0"), (prompt, sampling, "1/0"), (prompt, sampling, "1/1"))
    assert beside[1].token_ids.tolist() == alone.token_ids.tolist()
    np.testing.assert_allclose(beside[1].logprobs, alone.logprobs, atol=1e-5)
    assert beside[2].token_ids.tolist() != alone.token_ids.tolist()
    (reseeded,) = ask(make_engine(), (prompt, Sampling(max_tokens=8, seed=4), "1/0"))
    assert reseeded.token_ids.tolist() != alone.token_ids.tolist()


def test_waves_are_no_larger_than_max_sequences_and_answer_everyone(make_engine: MakeEngine, prompts: Any) -> None:
    sampling = Sampling(max_tokens=4)
    requests = [(prompts["image_shape"], sampling, str(i)) for i in range(5)]
    whole, cut = ask(make_engine(), *requests), ask(make_engine(max_sequences=2), *requests)
    assert [c.token_ids.tolist() for c in cut] == [c.token_ids.tolist() for c in whole]


def test_greedy_takes_the_likeliest(make_engine: MakeEngine, prompts: Any, thinker: Any, features: Any) -> None:
    prompt = prompts["image_audio"]
    engine = make_engine(banned_ids=[], eos_ids=[])
    (completion,) = ask(engine, (prompt, Sampling(max_tokens=3, temperature=0), "k"))
    for i in range(3):
        every = np.arange(thinker.vocab_size)
        before = completion.token_ids[:i]
        nexts = [score(thinker, features, prompt, np.append(before, t), [], 1.0)[-1] for t in every[:: 40 + i]]
        assert completion.logprobs[i] >= max(nexts) - 1e-5


def test_it_stops_at_eos_or_at_length(make_engine: MakeEngine, prompts: Any) -> None:
    prompt = prompts["audio_longer"]
    (long,) = ask(make_engine(eos_ids=[]), (prompt, Sampling(max_tokens=6), "k"))
    assert (long.stop, len(long.token_ids)) == ("length", 6)
    end = int(long.token_ids[3])
    first = long.token_ids.tolist().index(end)
    (short,) = ask(make_engine(eos_ids=[end]), (prompt, Sampling(max_tokens=6), "k"))
    assert short.stop == "eos"
    assert short.token_ids.tolist() == long.token_ids[: first + 1].tolist()
    assert short.mask.all()
    assert len(short.mask) == len(short.logprobs) == first + 1


def test_banned_ids_are_never_drawn(make_engine: MakeEngine, prompts: Any, thinker: Any, renderer: Any) -> None:
    """Half the vocabulary and every placeholder are banned; the rest still adds up to one."""
    banned = sorted({*range(0, thinker.vocab_size, 2), *renderer.banned_ids})
    requests = [(prompts["text"], Sampling(max_tokens=16), str(i)) for i in range(8)]
    completions = ask(make_engine(banned_ids=banned, eos_ids=[]), *requests)
    assert not np.isin(np.concatenate([c.token_ids for c in completions]), banned).any()
    greedy = ask(make_engine(banned_ids=banned), (prompts["text"], Sampling(max_tokens=4, temperature=0), "g"))
    assert not np.isin(greedy[0].token_ids, banned).any()


@pytest.mark.parametrize("setting", [{"top_p": 0.9}, {"top_k": 5}])
def test_a_truncated_distribution_is_refused(make_engine: MakeEngine, prompts: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rollout\.top_p and rollout\.top_k"):
        ask(make_engine(), (prompts["text"], Sampling(max_tokens=4, **setting), "k"))


def test_one_that_is_cancelled_does_not_disturb_the_others(make_engine: MakeEngine, prompts: Any) -> None:
    prompt, sampling = prompts["image_colour"], Sampling(max_tokens=24)
    (expected,) = ask(make_engine(eos_ids=[]), (prompt, sampling, "stays"))

    async def main() -> Completion:
        engine = make_engine(eos_ids=[])
        stays = asyncio.create_task(engine.generate(prompt, sampling, key="stays"))
        goes = asyncio.create_task(engine.generate(prompt, sampling, key="goes"))
        for _ in range(6):
            await asyncio.sleep(0)
        goes.cancel()
        with pytest.raises(asyncio.CancelledError):
            await goes
        return await stays

    assert asyncio.run(main()).token_ids.tolist() == expected.token_ids.tolist()


def test_a_failing_model_surfaces_in_every_request_and_the_engine_goes_on(
    make_engine: MakeEngine, prompts: Any, thinker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        engine, sampling = make_engine(), Sampling(max_tokens=4)
        with monkeypatch.context() as broken:
            broken.setattr(type(thinker), "head", lambda self, hidden: 1 / 0)
            asked = (engine.generate(prompts["text"], sampling, key=str(i)) for i in range(3))
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 3
        assert (await engine.generate(prompts["text"], sampling, key="0")).text is not None

    asyncio.run(main())


def test_versions_span_a_change_of_weights_within_a_completion(make_engine: MakeEngine, prompts: Any) -> None:
    async def main() -> Completion:
        engine = make_engine(eos_ids=[])
        engine.version = 4
        task = asyncio.create_task(engine.generate(prompts["text"], Sampling(max_tokens=12), key="k"))
        for _ in range(6):
            await asyncio.sleep(0)
        assert not task.done()
        engine.version = 5
        return await task

    assert asyncio.run(main()).versions == (4, 5)


def test_suspended_it_draws_nothing_until_resumed(make_engine: MakeEngine, prompts: Any) -> None:
    async def main() -> Completion:
        engine = make_engine()
        await engine.suspend()
        task = asyncio.create_task(engine.generate(prompts["text"], Sampling(max_tokens=2), key="k"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        await engine.resume()
        return await task

    assert 1 <= len(asyncio.run(main()).token_ids) <= 2


def test_g_completions_of_a_prompt_run_each_tower_once(make_engine: MakeEngine, prompts: Any, thinker: Any) -> None:
    from motet.features.store import FeatureStore

    store = FeatureStore(thinker.encode, fingerprint="towers")
    engine = make_engine(store=store)
    several = [prompts["images_colour"], prompts["video_agree"]]
    for epoch in range(2):
        ask(engine, *((p, Sampling(max_tokens=2), f"{epoch}/{p.digest}/{i}") for p in several for i in range(8)))
    assert store.num_encoded == len({item.hash for prompt in several for item in prompt.media})
