"""The PyTorch trainer: the policy in this process, packed rows, AdamW on float32 master weights."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from motet.checkpoint import dcp
from motet.checkpoint.dcp import WEIGHTS
from motet.config.schema import TrainerConfig
from motet.features.store import FeatureStore
from motet.models.attention import Packed
from motet.models.policy import Policy
from motet.protocols import Algorithm
from motet.trainer.logprobs import banned_bias, token_logprobs
from motet.trainer.optim import adamw, learning_rate
from motet.trainer.sharding import Gathered, Ranks, clip_gradients
from motet.trainer.step import Mismatch, accumulate, total
from motet.types import Batch, FloatArray, MicroBatch, StepResult
from motet.weights.source import Census

OPTIMIZER, VERSION = "optimizer/", "version"
"""In a checkpoint, beside `weights/<name>`: `optimizer/<name>/exp_avg` and so on, and the version."""


class MasterWeights:
    """Float32 copies that the optimizer works on, where the module computes in less; the module's own otherwise.

    `collect` moves the gradients of a backward pass over, so that micro-batches add up in float32.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self._module = parameters
        self._copies = any(p.dtype != torch.float32 for p in parameters.values())
        self.parameters = (
            {n: torch.nn.Parameter(p.detach().float().clone()) for n, p in parameters.items()}
            if self._copies
            else parameters
        )

    def collect(self) -> None:
        if not self._copies:
            return
        for name, parameter in self._module.items():
            if parameter.grad is not None:
                master = self.parameters[name]
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad + gradient
                parameter.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the master weights into the module."""
        if self._copies:
            for name, parameter in self._module.items():
                parameter.copy_(self.parameters[name])


class TorchTrainer:
    """`Trainer` on one device, or on as many as the process group has ranks, each of which makes one and calls it.

    Args:
        policy: the policy; its trained parameters learn in place, so an engine on the same module needs no sync.
        features: encoder outputs, shared with the engine.
        algorithm: gives the loss.
        reference: the frozen model of the KL term, where the algorithm needs one.
        temperature: that sampling used; log-probabilities are of the same distribution.
        banned_ids: that sampling never drew.
        num_steps: of the whole run, for the schedule.
    """

    def __init__(
        self,
        policy: Policy,
        features: FeatureStore,
        algorithm: Algorithm,
        config: TrainerConfig,
        *,
        reference: Policy | None,
        temperature: float,
        banned_ids: Sequence[int],
        num_steps: int,
    ) -> None:
        self.version = 0
        self._policy = policy
        self._ranks = Ranks()
        self._gathered = {id(p): Gathered(p, self._ranks) for p in (policy, reference) if p}
        self._features = features
        self._algorithm = algorithm
        self._config = config
        self._reference = reference
        self._temperature = temperature
        self._bias = banned_bias(list(banned_ids), policy.vocab_size, policy.device)
        self._num_steps = num_steps
        self._masters = MasterWeights(policy.trained())
        self._optimizer = adamw(self._masters.parameters, config.optimizer)
        self._unchecked = True  # the first step after start or resume checks that ratios are one

    async def step(self, batch: Batch) -> StepResult:
        """One optimizer step; the version it returns counts them.

        Raises ValueError where the first step after start or resume finds the engine's log-probabilities too far
        from the trainer's, naming modality and position of the worst token.
        """
        self._optimizer.zero_grad()
        part = accumulate(
            self._ranks.column(batch),
            batch,
            algorithm=self._algorithm,
            forward=lambda micro: self._logprobs(self._policy, micro),
            reference=self._reference_logprobs if self._algorithm.needs_reference else None,
            after_backward=self._masters.collect,
        )
        metrics, worst = total(self._ranks.gather(part))
        if self._unchecked:
            self._check(metrics["mismatch/mean"], worst)
        parameters = self._masters.parameters.values()
        norm = clip_gradients(parameters, self._config.optimizer.max_grad_norm)
        if not torch.isfinite(norm):
            raise ValueError(f"step {self.version + 1}: the gradient is not finite; lower trainer.optimizer.lr")
        rate = learning_rate(self._config.optimizer, self.version, self._num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._masters.publish()
        self.version += 1
        return StepResult(version=self.version, metrics={**metrics, "grad_norm": float(norm), "lr": rate})

    async def logprobs(self, batch: Batch) -> list[list[FloatArray]]:
        with torch.no_grad():
            ours = [self._logprobs(self._policy, m)[0].cpu().numpy() for m in self._ranks.column(batch)]
        return [list(row) for row in zip(*self._ranks.gather(ours), strict=True)]

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor:
        assert self._reference is not None
        with torch.no_grad():
            return self._logprobs(self._reference, micro)[0]

    def _logprobs(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """f32[T] log-probabilities and entropies, computed where the loss mask is on, 0 elsewhere."""
        return self._gathered[id(policy)](lambda: self._masked_logprobs(policy, micro))

    def _masked_logprobs(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        hidden = self._hidden(policy, micro)
        at = torch.as_tensor(micro.loss_mask.nonzero()[0], device=hidden.device)
        logprobs, entropy = token_logprobs(
            policy.head,
            hidden[at],
            torch.as_tensor(micro.labels, device=hidden.device)[at],
            temperature=self._temperature,
            bias=self._bias,
            chunk_tokens=self._config.vocab_chunk_tokens,
        )
        zeros = torch.zeros(len(hidden), device=hidden.device)
        return zeros.index_copy(0, at, logprobs), zeros.index_copy(0, at, entropy)

    def _hidden(self, policy: Policy, micro: MicroBatch) -> Tensor:
        """[T, H]"""
        if not len(micro.token_ids):  # the other ranks count on this one's collectives: run on a token of no meaning
            return policy.hidden(torch.zeros(1), torch.zeros(3, 1), (), (), Packed([0, 1]))[:0]
        return policy.hidden(
            micro.token_ids,
            micro.positions,
            micro.media,
            self._features(micro.media),
            Packed(micro.cu_seqlens.tolist()),
        )

    def _check(self, mean: float, worst: dict[str, Mismatch]) -> None:
        bound = self._config.max_initial_mismatch
        if not mean <= bound:  # nor where it is not a number
            m = max(worst.values(), key=lambda m: m.value)
            raise ValueError(
                f"the engine's log-probabilities differ from the trainer's by {mean:.3g} on average (bound: "
                f"trainer.max_initial_mismatch = {bound:g}), worst by {m.value:.3g} at completion token {m.position} "
                f"of a {m.modality} row; the two do not run the same model on the same input"
            )
        self._unchecked = False

    @property
    def state_bytes(self) -> int:
        """Weights and the two moments of AdamW, all float32."""
        return sum(3 * 4 * p.numel() for p in self._masters.parameters.values())

    async def save(self, path: Path) -> Awaitable[None]:
        """Trained weights (float32, by name in the module), optimizer state and progress, in DCP format."""
        return dcp.begin(self._state(), path, self._ranks.writers)

    async def load(self, path: Path) -> None:
        """Go on from what `save` wrote. Raises ValueError where it is of another model."""
        saved = {name for name, _ in dcp.census(path).items() if name.startswith(OPTIMIZER)}
        for name, parameter in self._masters.parameters.items():
            if f"{OPTIMIZER}{name}/step" in saved and not self._optimizer.state[parameter]:
                self._optimizer.state[parameter] = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        state = self._state()
        _check_same(dcp.census(path), state)
        dcp.load_into(state, path)
        self._masters.publish()
        self.version = int(state[VERSION])
        self._unchecked = True

    def _state(self) -> dict[str, Tensor]:
        """All that a checkpoint holds; the tensors are those that learn."""
        return {
            **{WEIGHTS + name: parameter.detach() for name, parameter in self._masters.parameters.items()},
            **{
                f"{OPTIMIZER}{name}/{key}": value
                for name, parameter in self._masters.parameters.items()
                for key, value in self._optimizer.state[parameter].items()
            },
            VERSION: torch.tensor(self.version),
        }


def _check_same(saved: Census, ours: Mapping[str, Tensor]) -> None:
    differing = {(n, shape) for n, (shape, _) in saved.items()} ^ {(n, tuple(t.shape)) for n, t in ours.items()}
    if differing:
        name, shape = sorted(differing)[0]
        raise ValueError(
            f"the checkpoint is of another model: {name} {list(shape)} is on one side only; check model.path"
        )
