"""The PyTorch trainer: the policy in this process, packed rows, AdamW on float32 master weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from motet.config.schema import TrainerConfig
from motet.features.store import FeatureStore
from motet.models.attention import Packed
from motet.models.policy import Policy
from motet.protocols import Algorithm
from motet.trainer.logprobs import banned_bias, token_logprobs
from motet.trainer.optim import adamw, learning_rate
from motet.trainer.step import Mismatch, accumulate
from motet.types import Batch, FloatArray, MicroBatch, StepResult

WEIGHTS, OPTIMIZER, PROGRESS = "weights.safetensors", "optimizer.safetensors", "trainer.json"


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
    """`Trainer` on one device.

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
        micros = [row[0] for row in batch.grid]
        self._optimizer.zero_grad()
        metrics, worst = accumulate(
            micros,
            batch,
            algorithm=self._algorithm,
            forward=lambda micro: self._logprobs(self._policy, micro),
            reference=self._reference_logprobs if self._algorithm.needs_reference else None,
            after_backward=self._masters.collect,
        )
        metrics |= {f"mismatch/max/{modality}": found.value for modality, found in worst.items()}
        if self._unchecked:
            self._check(metrics["mismatch/mean"], worst)
        parameters = self._masters.parameters.values()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.optimizer.max_grad_norm)
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
            return [[self._logprobs(self._policy, m)[0].cpu().numpy() for m in row] for row in batch.grid]

    def _reference_logprobs(self, micro: MicroBatch) -> Tensor:
        assert self._reference is not None
        with torch.no_grad():
            return self._logprobs(self._reference, micro)[0]

    def _logprobs(self, policy: Policy, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """f32[T] log-probabilities and entropies, computed where the loss mask is on, 0 elsewhere."""
        hidden = policy.hidden(
            micro.token_ids,
            micro.positions,
            micro.media,
            self._features(micro.media),
            Packed(micro.cu_seqlens.tolist()),
        )
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

    async def save(self, path: Path) -> None:
        """Write weights (trained ones, float32, by name in the module), optimizer state and progress."""
        masters = self._masters.parameters
        save_file({n: p.detach().contiguous() for n, p in masters.items()}, path / WEIGHTS)
        state = self._optimizer.state
        names: dict[Tensor, str] = {p: n for n, p in masters.items()}
        save_file(
            {f"{names[p]}/{k}": v.contiguous() for p, entry in state.items() for k, v in entry.items()},
            path / OPTIMIZER,
        )
        (path / PROGRESS).write_text(json.dumps({"version": self.version}))

    async def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        masters = self._masters.parameters
        self._copy_in(load_file(path / WEIGHTS), masters)
        self._masters.publish()
        for key, value in load_file(path / OPTIMIZER).items():
            name, entry = key.rsplit("/", 1)
            self._optimizer.state[masters[name]][entry] = value.to(masters[name].device if value.ndim else "cpu")
        self.version = json.loads((path / PROGRESS).read_text())["version"]
        self._unchecked = True

    @torch.no_grad()
    def _copy_in(self, saved: dict[str, Tensor], masters: dict[str, torch.nn.Parameter]) -> None:
        theirs, ours = ({(n, tuple(p.shape)) for n, p in side.items()} for side in (saved, masters))
        if theirs != ours:
            name, shape = sorted(theirs ^ ours)[0]
            raise ValueError(
                f"the checkpoint is of another model: {name} {list(shape)} is on one side only; check model.path"
            )
        for name, parameter in masters.items():
            parameter.copy_(saved[name])
