"""Tensors in torch's distributed-checkpoint format (DCP): written by every rank its own part, read by any number.

Names are flat; a value is a tensor or a DTensor. Everything here works without a process group too.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from motet.weights.source import Census

# Said of every call without a process group, which is how one process works here.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

INDEX = ".metadata"
"""The file that DCP finds tensors by."""
WEIGHTS = "weights/"
"""How the names of trained weights begin, whichever trainer wrote them: `weights/<name in the module>`."""


def begin(tensors: Mapping[str, Tensor], path: Path, group: dist.ProcessGroup | None = None) -> Awaitable[None]:
    """Copy the tensors to the host and begin to write them into the folder; what is returned ends when all is written.

    Ranks call it together, with a group over gloo in which nothing else runs meanwhile.
    """
    writer = dcp.FileSystemWriter(path, sync_files=False)  # the store forces all files to disk at once
    future: Any = dcp.async_save(
        dict(tensors), storage_writer=writer, process_group=group, no_dist=not dist.is_initialized()
    )
    return _ended(future)


async def _ended(future: Any) -> None:
    await asyncio.wrap_future(future)


def load_into(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Fill the tensors in place from the folder, whatever number of ranks wrote it."""
    dcp.load(dict(tensors), storage_reader=dcp.FileSystemReader(path), no_dist=not dist.is_initialized())


def census(path: Path) -> Census:
    """Shape and dtype by name, of all that the folder holds; no tensor is read."""
    entries = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    return {
        name: (tuple(entry.size), entry.properties.dtype)
        for name, entry in sorted(entries.items())
        if isinstance(entry, TensorStorageMetadata)
    }


def stream(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, Tensor]]:
    """The tensors whose name is wanted, whole, one in memory at a time."""
    for name, (shape, dtype) in census(path).items():
        if wanted(name):
            tensor = torch.empty(shape, dtype=dtype)
            dcp.load({name: tensor}, storage_reader=dcp.FileSystemReader(path), no_dist=True)
            yield name, tensor
