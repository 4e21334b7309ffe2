from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from motet import algorithms
from motet.algorithms import ALGORITHMS, GRPO
from motet.batching.pack import pack
from motet.checkpoint import dcp
from motet.config.schema import AlgorithmConfig
from motet.models.attention import Packed
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker
from motet.trainer.torch_ import MasterWeights, TorchTrainer
from motet.types import Batch, Sample, StepResult

MakeTrainer = Callable[..., TorchTrainer]
MODALITIES = {"text", "image", "audio", "video", "video+audio", "image+audio"}
STILL = {"lr": 1e-30, "max_grad_norm": 1e9}
"""A step that leaves weights and gradients as they are."""


def step(trainer: TorchTrainer, batch: Batch) -> StepResult:
    return asyncio.run(trainer.step(batch))


def batch(rollouts: Sequence[Sample], row_tokens: int = 200) -> Batch:
    return pack(rollouts, row_tokens=row_tokens)


def off_by(rollouts: Sequence[Sample], scale: float) -> list[Sample]:
    """The same, with log-probabilities of another policy."""
    rng = np.random.default_rng(0)
    noise = [rng.normal(0, scale, len(s.logprobs)).astype(np.float32) for s in rollouts]
    return [
        replace(s, logprobs=s.logprobs + np.where(s.loss_mask, n, np.float32(0)))
        for s, n in zip(rollouts, noise, strict=True)
    ]


def weights(policy: Thinker) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.module.named_parameters()}


def moved(before: dict[str, Tensor], policy: Thinker) -> set[str]:
    after = weights(policy)
    return {name for name in before if not torch.equal(before[name], after[name])}


def gradient(trainer: TorchTrainer) -> Tensor:
    """f64, of all master weights."""
    return torch.cat([p.grad.double().flatten() for p in trainer._masters.parameters.values() if p.grad is not None])


# ---- the gradient ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def double(random_checkpoint: Path) -> Thinker:
    """In float64, so that another cut shows as another gradient and not as another rounding. (In float32, rounding
    alone comes to 1e-6.)"""
    policy = Thinker(random_checkpoint, dtype=torch.float64)
    policy.module.set_experts_implementation({"text_config": "eager"})  # grouped matrix products know no float64
    return policy


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_gradient_does_not_depend_on_how_a_batch_is_cut(
    make_trainer: MakeTrainer, double: Thinker, rollouts: list[Sample], kind: str
) -> None:
    algorithm = algorithms.build(AlgorithmConfig(kind=kind), max_tokens=8)  # type: ignore[arg-type]
    learned = off_by(rollouts[:4] + rollouts[8:10] + rollouts[12:], 0.3)  # far enough for every clip to be active
    gradients, losses = [], []
    for row_tokens, num_micro in ((1, len(learned)), (150, None), (10**6, 1)):
        trainer = make_trainer(double, algorithm, optimizer=STILL, max_initial_mismatch=1e9)
        cut = batch(learned, row_tokens)
        assert len(cut.grid) == (num_micro or len(cut.grid))
        losses.append(step(trainer, cut).metrics["loss"])
        gradients.append(gradient(trainer))
    assert {s.modality for s in learned} == MODALITIES
    assert gradients[0].norm() > 1
    for other, loss in zip(gradients[1:], losses[1:], strict=True):
        assert float((other - gradients[0]).norm() / gradients[0].norm()) < 1e-6
        assert loss == pytest.approx(losses[0], abs=1e-6)


def test_gradients_of_half_precision_add_up_in_float32() -> None:
    """1 + 2^-9 would be 1 in bfloat16."""
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    masters = MasterWeights({"w": parameter})
    assert masters.parameters["w"].dtype == torch.float32
    for value in (1.0, 2**-9):
        parameter.grad = torch.tensor([value], dtype=torch.bfloat16)
        masters.collect()
        assert parameter.grad is None
    gradient = masters.parameters["w"].grad
    assert gradient is not None and gradient.tolist() == [1 + 2**-9]


def test_a_float32_module_is_its_own_master() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    masters = MasterWeights({"w": parameter})
    assert masters.parameters["w"] is parameter
    parameter.grad = torch.ones(1)
    masters.collect()
    assert parameter.grad.tolist() == [1]


def test_gradients_are_scaled_down_to_the_largest_norm(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    trainer = make_trainer(optimizer=STILL)
    norm = step(trainer, batch(rollouts)).metrics["grad_norm"]
    assert float(gradient(trainer).norm()) == pytest.approx(norm, rel=1e-4)
    assert norm > 1
    for largest, expected in ((0.5, 0.5), (2 * norm, norm)):
        clipped = make_trainer(optimizer={"lr": 1e-30, "max_grad_norm": largest})
        assert step(clipped, batch(rollouts)).metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
        assert float(gradient(clipped).norm()) == pytest.approx(expected, rel=1e-4)


def test_a_step_moves_all_but_the_towers(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample]
) -> None:
    policy = Thinker(random_checkpoint)
    before = weights(policy)
    trainer = make_trainer(policy, optimizer={"lr": 1e-3})
    assert step(trainer, batch(rollouts)).version == trainer.version == 1
    assert moved(before, policy) == policy.trained().keys()
    towers = [p for n, p in policy.module.named_parameters() if n not in policy.trained()]
    assert len(towers) > 50 and all(p.grad is None for p in towers)


def test_every_step_starts_from_no_gradient(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    trainer = make_trainer(optimizer=STILL)
    first, second = (step(trainer, batch(rollouts)).metrics["grad_norm"] for _ in range(2))
    assert first == pytest.approx(second, rel=1e-5)


def test_a_gradient_that_is_not_finite_moves_nothing(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample]
) -> None:
    policy = Thinker(random_checkpoint)
    before = weights(policy)
    endless = [replace(s, advantages=np.where(s.loss_mask, np.float32(np.inf), 0)) for s in rollouts[:2]]
    with pytest.raises(ValueError, match=r"step 1: the gradient is not finite; lower trainer\.optimizer\.lr"):
        step(make_trainer(policy, optimizer={"lr": 1e-3}), batch(endless))
    assert moved(before, policy) == set()


def test_the_rate_follows_the_schedule(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    trainer = make_trainer(num_steps=4, optimizer={"lr": 1e-4, "schedule": "linear", "warmup_steps": 2})
    weight = trainer._policy.trained()["model.norm.weight"]
    before = weight.detach().clone()
    measured = [step(trainer, batch(rollouts[:2])).metrics["lr"]]
    moves = (weight.detach() - before).abs()
    assert float(moves.median()) == pytest.approx(0.5e-4, rel=1e-2)  # Adam's first step is as long as the rate
    measured += [step(trainer, batch(rollouts[:2])).metrics["lr"] for _ in range(3)]
    assert measured == pytest.approx([0.5e-4, 1e-4, 1e-4, 0.5e-4])
    assert trainer.version == 4


# ---- what is measured --------------------------------------------------------------------------


def test_at_the_first_step_every_ratio_is_one(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    metrics = step(make_trainer(), batch(rollouts)).metrics
    by_modality = {name.removeprefix("mismatch/max/"): v for name, v in metrics.items() if "mismatch/max/" in name}
    assert by_modality.keys() == MODALITIES
    assert max(by_modality.values()) == metrics["mismatch/max"] < 1e-5
    assert 0 < metrics["mismatch/mean"] < 2e-6
    assert metrics["ratio"] == pytest.approx(1, abs=1e-5)
    assert metrics["clip_low"] == metrics["clip_high"] == 0
    assert 5 < metrics["entropy"] < np.log(480 - 7)  # of a random model, over all ids but the banned


def test_a_reference_that_is_the_policy_is_at_distance_zero(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample]
) -> None:
    trainer = make_trainer(
        algorithm=GRPO(kl_weight=0.1),
        reference=Thinker(random_checkpoint),
        optimizer={"lr": 1e-3},
        max_initial_mismatch=10,
    )
    first, second = (step(trainer, batch(rollouts)).metrics["kl"] for _ in range(2))
    assert first == 0
    assert second > 1e-4


def test_log_probabilities_come_in_the_shape_of_the_grid(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    cut = batch(rollouts)
    measured = asyncio.run(make_trainer().logprobs(cut))
    assert len(measured) == len(cut.grid) > 1
    for (ours,), (micro,) in zip(measured, cut.grid, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, micro.logprobs, rtol=0, atol=1e-5)
        assert (ours[~micro.loss_mask] == 0).all() and (ours[micro.loss_mask] < 0).all()


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_temperature_is_that_of_sampling_and_banned_ids_have_no_share(
    make_trainer: MakeTrainer, thinker: Thinker, renderer: Renderer, rollouts: list[Sample], temperature: float
) -> None:
    ((micro,),) = batch(rollouts[:1]).grid
    ((measured,),) = asyncio.run(make_trainer(temperature=temperature).logprobs(batch(rollouts[:1])))
    with torch.no_grad():
        layout = Packed(micro.cu_seqlens.tolist())
        logits = thinker.head(thinker.hidden(micro.token_ids, micro.positions, (), (), layout))
    logits[:, renderer.banned_ids] = -torch.inf
    labels = torch.from_numpy(np.where(micro.loss_mask, micro.labels, 0))
    expected = (logits / temperature).log_softmax(-1).gather(1, labels[:, None])[:, 0].numpy()
    np.testing.assert_allclose(measured, np.where(micro.loss_mask, expected, 0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("vocab_chunk_tokens", [1, 7])
def test_the_chunks_of_the_vocabulary_head_change_nothing(
    monkeypatch: pytest.MonkeyPatch, make_trainer: MakeTrainer, rollouts: list[Sample], vocab_chunk_tokens: int
) -> None:
    whole, cut = make_trainer(optimizer=STILL), make_trainer(optimizer=STILL, vocab_chunk_tokens=vocab_chunk_tokens)
    expected = step(whole, batch(rollouts[:6])).metrics
    held: list[int] = []
    head = Thinker.head
    monkeypatch.setattr(Thinker, "head", lambda self, hidden: (held.append(len(hidden)), head(self, hidden))[1])
    measured = step(cut, batch(rollouts[:6])).metrics
    assert max(held) == vocab_chunk_tokens
    assert measured["entropy"] == pytest.approx(expected["entropy"], rel=1e-6)
    assert float((gradient(cut) - gradient(whole)).norm() / gradient(whole).norm()) < 5e-6


# ---- half precision ----------------------------------------------------------------------------


def test_master_weights_move_where_half_precision_would_not(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample]
) -> None:
    policy = Thinker(random_checkpoint, dtype=torch.bfloat16)
    before = weights(policy)
    trainer = make_trainer(policy, optimizer={"lr": 1e-6}, max_initial_mismatch=1)
    step(trainer, batch(rollouts))
    name = "model.norm.weight"  # about 1, where the next number of bfloat16 is 0.004 away
    moves = (trainer._masters.parameters[name] - before[name].float()).abs()
    assert name not in moved(before, policy)
    assert float(moves.detach().median()) == pytest.approx(1e-6, rel=0.1)
    assert all(p.dtype == torch.bfloat16 for p in policy.trained().values())


def test_what_moves_far_enough_is_rounded_into_the_module(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample]
) -> None:
    policy = Thinker(random_checkpoint, dtype=torch.bfloat16)
    trainer = make_trainer(policy, optimizer={"lr": 0.02}, max_initial_mismatch=1)
    step(trainer, batch(rollouts))
    for name, parameter in policy.trained().items():
        assert torch.equal(parameter, trainer._masters.parameters[name].bfloat16())


def test_half_precision_engines_and_trainers_differ_and_say_by_how_much(
    make_trainer: MakeTrainer, rollouts: list[Sample]
) -> None:
    """The rollouts are of float32."""
    metrics = step(make_trainer(dtype="bfloat16", max_initial_mismatch=1), batch(rollouts)).metrics
    assert 1e-3 < metrics["mismatch/mean"] < 0.1
    assert metrics["mismatch/mean"] < metrics["mismatch/max"] < 1
    assert metrics["grad_norm"] == pytest.approx(step(make_trainer(), batch(rollouts)).metrics["grad_norm"], rel=0.05)


# ---- the check of the first step ---------------------------------------------------------------


def wrong_at(rollouts: Sequence[Sample], index: int, token: int, by: float) -> list[Sample]:
    """Sample `index` with another log-probability at a token of its completion."""
    logprobs = rollouts[index].logprobs.copy()
    logprobs[int(rollouts[index].loss_mask.argmax()) + token] += by
    return [replace(s, logprobs=logprobs) if i == index else s for i, s in enumerate(rollouts)]


@pytest.mark.parametrize(("modality", "token"), [("audio", 0), ("video+audio", 3)])
def test_a_run_whose_engine_differs_stops_and_names_modality_and_position(
    make_trainer: MakeTrainer, random_checkpoint: Path, rollouts: list[Sample], modality: str, token: int
) -> None:
    policy = Thinker(random_checkpoint)
    before = weights(policy)
    index = next(i for i, s in enumerate(rollouts) if s.modality == modality)
    said = rf"worst by 100 at completion token {token} of a {modality.replace('+', '.')} row"
    with pytest.raises(ValueError, match=said) as raised:
        step(make_trainer(policy), batch(wrong_at(rollouts, index, token, -100)))
    assert "trainer.max_initial_mismatch = 0.05" in str(raised.value)
    assert moved(before, policy) == set()


def test_the_bound_is_on_the_mean(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    num_tokens = batch(rollouts).num_tokens
    wrong = wrong_at(rollouts, 0, 0, 0.1 * num_tokens)
    assert step(make_trainer(max_initial_mismatch=0.11), batch(wrong)).metrics["mismatch/mean"] == pytest.approx(
        0.1, abs=1e-5
    )
    with pytest.raises(ValueError, match=r"by 0\.1 on average"):
        step(make_trainer(max_initial_mismatch=0.09), batch(wrong))


def test_what_is_not_a_number_does_not_pass(make_trainer: MakeTrainer, rollouts: list[Sample]) -> None:
    with pytest.raises(ValueError, match="by nan on average"):
        step(make_trainer(), batch(wrong_at(rollouts[:2], 0, 0, float("nan"))))


def test_the_first_step_after_start_and_after_resume_is_checked_and_no_other(
    make_trainer: MakeTrainer, rollouts: list[Sample], tmp_path: Path
) -> None:
    trainer = make_trainer(optimizer=STILL)
    right, wrong = batch(rollouts[:4]), batch(off_by(rollouts[:4], 1.0))
    step(trainer, right)
    assert step(trainer, wrong).metrics["mismatch/mean"] > 0.05
    save(trainer, tmp_path)
    asyncio.run(trainer.load(tmp_path))
    with pytest.raises(ValueError, match="max_initial_mismatch"):
        step(trainer, wrong)
    step(trainer, right)
    step(trainer, wrong)


# ---- save and load -----------------------------------------------------------------------------


def save(trainer: TorchTrainer, folder: Path) -> None:
    async def whole() -> None:
        await (await trainer.save(folder))

    asyncio.run(whole())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_steps_equal_a_step_a_save_a_load_and_a_step_bit_for_bit(
    make_trainer: MakeTrainer, rollouts: list[Sample], tmp_path: Path, dtype: str
) -> None:
    def make() -> TorchTrainer:
        return make_trainer(
            dtype=dtype, optimizer={"lr": 1e-3, "schedule": "linear", "weight_decay": 0.1}, max_initial_mismatch=10
        )

    def state(trainer: TorchTrainer) -> list[Tensor]:
        masters = trainer._masters.parameters
        return [*masters.values(), *(trainer._optimizer.state[p]["exp_avg_sq"] for p in masters.values())]

    whole = make()
    step(whole, batch(rollouts[:8]))
    save(whole, tmp_path)
    at_save = [x.detach().clone() for x in state(whole)]
    last = step(whole, batch(rollouts[8:]))

    resumed = make()
    asyncio.run(resumed.load(tmp_path))
    assert resumed.version == 1
    assert all(torch.equal(a, b) for a, b in zip(state(resumed), at_save, strict=True))
    again = step(resumed, batch(rollouts[8:]))
    assert (again.version, again.metrics) == (last.version, last.metrics)
    assert all(torch.equal(a, b) for a, b in zip(state(resumed), state(whole), strict=True))
    ours, theirs = resumed._policy.trained(), whole._policy.trained()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_checkpoint_holds_the_master_weights_by_name_and_what_adam_remembers(
    make_trainer: MakeTrainer, rollouts: list[Sample], tmp_path: Path
) -> None:
    trainer = make_trainer(dtype="bfloat16", max_initial_mismatch=1)
    step(trainer, batch(rollouts[:2]))
    save(trainer, tmp_path)
    saved = dcp.census(tmp_path)
    names = trainer._policy.trained()
    assert saved.keys() == {"version"} | {
        name
        for n in names
        for name in (f"weights/{n}", *(f"optimizer/{n}/{k}" for k in ("exp_avg", "exp_avg_sq", "step")))
    }
    assert {dtype for name, (_, dtype) in saved.items() if name != "version"} == {torch.float32}
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert trainer.state_bytes <= written <= 1.1 * trainer.state_bytes


def test_what_is_learned_while_a_checkpoint_is_written_is_not_in_it(
    make_trainer: MakeTrainer, rollouts: list[Sample], tmp_path: Path
) -> None:
    async def main() -> None:
        writing = await trainer.save(tmp_path)
        await trainer.step(batch(rollouts[:2]))
        await writing

    trainer = make_trainer(optimizer={"lr": 1e-2})
    before = {name: parameter.detach().clone() for name, parameter in trainer._policy.trained().items()}
    asyncio.run(main())
    saved = {name: torch.empty_like(tensor) for name, tensor in before.items()}
    dcp.load_into({f"weights/{name}": tensor for name, tensor in saved.items()}, tmp_path)
    assert all(torch.equal(saved[name], before[name]) for name in before)
    assert not torch.equal(saved["lm_head.weight"], trainer._policy.trained()["lm_head.weight"])


def write(tensors: dict[str, Tensor], folder: Path) -> None:
    async def whole() -> None:
        await dcp.begin(tensors, folder)

    asyncio.run(whole())


def drop(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in saved.items() if name != "weights/lm_head.weight"}


def add(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    return saved | {"weights/lm_head.bias": torch.zeros(480)}


def widen(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    return saved | {"weights/lm_head.weight": torch.zeros(500, 128)}


def narrow(saved: dict[str, Tensor]) -> dict[str, Tensor]:
    return saved | {"weights/lm_head.weight": torch.zeros(1, 128)}  # which would copy into every row


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop, r"weights/lm_head.weight \[480, 128\]"),
        (add, r"weights/lm_head.bias \[480\]"),
        (widen, r"weights/lm_head.weight \[480, 128\]"),
        (narrow, r"weights/lm_head.weight \[1, 128\]"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    make_trainer: MakeTrainer,
    random_checkpoint: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    named: str,
) -> None:
    policy = Thinker(random_checkpoint)
    trainer = make_trainer(policy)
    save(trainer, tmp_path)
    saved = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in dcp.census(tmp_path).items()}
    dcp.load_into(saved, tmp_path)
    shutil.rmtree(tmp_path)
    write(change(saved), tmp_path)
    before = weights(policy)
    with pytest.raises(ValueError, match=rf"of another model: {named}.*model\.path"):
        asyncio.run(trainer.load(tmp_path))
    assert moved(before, policy) == set()
