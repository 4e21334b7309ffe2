"""The ranks that share a step: each keeps a part of every tensor, runs its own rows and adds what it found.

Tensors are cut by FSDP2 (`torch.distributed.fsdp.fully_shard`). A unit is gathered just before it runs and its
gradients are summed over the ranks just after. A collective that one rank leaves out stops them all, so every rank runs
as many units as the others, whatever its rows hold: a row of no tokens, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from motet.models.policy import Policy
from motet.types import Batch, MicroBatch

T = TypeVar("T")
AXIS = "dp"
WRITE_DEADLINE = timedelta(minutes=30)
"""For the slowest rank to write its part of a checkpoint."""


class Ranks:
    """The processes of the default process group, or this one alone. All of them make it together.

    On CUDA the group needs a backend for the host, too: `cpu:gloo,cuda:nccl`. Its time-out ends every wait of a step.
    """

    def __init__(self) -> None:
        self.num = dist.get_world_size() if dist.is_initialized() else 1
        self._rank = dist.get_rank() if self.num > 1 else 0
        self.writers = dist.new_group(backend="gloo", timeout=WRITE_DEADLINE) if self.num > 1 else None
        """For checkpoints, which are written beside steps: in one group their collectives would mix."""

    def column(self, batch: Batch) -> list[MicroBatch]:
        """The rows of this rank."""
        assert all(len(row) == self.num for row in batch.grid), "a batch of another number of ranks: see pack(dp=)"
        return [row[self._rank] for row in batch.grid]

    def gather(self, value: T) -> list[T]:
        """What every rank gives, in the order of ranks: the same list on each."""
        if self.num == 1:
            return [value]
        values: list[Any] = [None] * self.num
        dist.all_gather_object(values, value)
        return values


class Gathered(torch.nn.Module):
    """Runs what uses a policy, with the policy's tensors there: `gathered(compute)` is `compute()`.

    The towers stay whole on every rank. Each decoder layer is a unit. Embedding, last norm and head are one together,
    there from the first to the last line of `compute`: the head runs once for each chunk of labels, and if it were a
    unit of its own, ranks with different numbers of chunks would wait for each other for ever.
    """

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        super().__init__()
        self.language = torch.nn.ModuleList(policy.language)
        if ranks.num == 1:
            return
        mesh = init_device_mesh(policy.device.type, (ranks.num,), mesh_dim_names=(AXIS,))
        for unit in (*policy.layers, self):
            fully_shard(
                unit, mesh=mesh, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32)
            )
            assert isinstance(unit, FSDPModule)
            unit.set_gradient_divide_factor(1.0)  # losses are sums over the global denominator, and so add up
            unit.set_force_sum_reduction_for_comms(True)  # gloo has no other

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def clip_gradients(parameters: Iterable[torch.nn.Parameter], max_norm: float) -> Tensor:
    """Scale the gradients down to a norm of at most `max_norm`. Returns the norm before, of all ranks' parts."""
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
