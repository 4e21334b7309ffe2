from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from motet.features.folder import DRAFT, SUFFIX, FeatureFolder

WIDTH = 256
"""Of the tensors here: 1024 bytes, and as many files as say so fit into `room(n)`."""


def tensor(value: float) -> torch.Tensor:
    return torch.full((1, WIDTH), float(value))


def room(num_files: int, tmp_path: Path) -> int:
    """Bytes of so many files of one tensor."""
    folder = FeatureFolder(tmp_path / "measure", capacity_bytes=1 << 20)
    folder.write("a", tensor(0))
    return num_files * folder.num_bytes()


def names(path: Path) -> list[str]:
    return sorted(file.name.removesuffix(SUFFIX) for file in path.iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_dtype_and_shape_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    written = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    written[0, 0], written[1, 1] = float("nan"), -0.0
    folder = FeatureFolder(tmp_path, capacity_bytes=1 << 20)
    folder.write("towers-clip", written.T)  # not contiguous
    read = folder.read("towers-clip")
    assert read is not None and read.dtype == dtype and read.shape == (5, 3)
    assert torch.equal(read.T.contiguous().view(torch.uint8), written.view(torch.uint8))
    assert folder.read("towers-other") is None


def test_a_file_is_safetensors_named_by_its_key(tmp_path: Path) -> None:
    FeatureFolder(tmp_path, capacity_bytes=1 << 20).write("towers-clip", tensor(2))
    assert names(tmp_path) == ["towers-clip"]
    assert load_file(tmp_path / f"towers-clip{SUFFIX}")["features"].tolist() == [[2.0] * WIDTH]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-WIDTH] ^= 1
    path.write_bytes(data)


def foreign(path: Path) -> None:
    save_file({"weight": tensor(1)}, path)


def misnamed(path: Path) -> None:
    FeatureFolder(path.parent, capacity_bytes=1 << 20).write("another", tensor(7))
    path.with_name(f"another{SUFFIX}").replace(path)


@pytest.mark.parametrize("damage", [cut, empty, flip, foreign, misnamed])
def test_a_damaged_file_is_not_there_and_can_be_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object
) -> None:
    folder = FeatureFolder(tmp_path, capacity_bytes=1 << 20)
    folder.write("clip", tensor(1))
    assert callable(damage)
    damage(tmp_path / f"clip{SUFFIX}")
    with caplog.at_level(logging.WARNING):
        assert folder.read("clip") is None
    assert f"clip{SUFFIX} cannot be used and will be replaced" in caplog.text
    folder.write("clip", tensor(1))
    read = folder.read("clip")
    assert read is not None and torch.equal(read, tensor(1))


def test_what_was_used_longest_ago_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    folder = FeatureFolder(path, capacity_bytes=room(3, tmp_path))
    for name in "abc":
        folder.write(name, tensor(0))
    assert names(path) == ["a", "b", "c"]
    folder.read("a")
    folder.write("d", tensor(0))
    assert names(path) == ["a", "c", "d"]


def test_one_byte_less_holds_one_file_less(tmp_path: Path) -> None:
    path = tmp_path / "store"
    folder = FeatureFolder(path, capacity_bytes=room(3, tmp_path) - 1)
    for name in "abc":
        folder.write(name, tensor(0))
    assert names(path) == ["b", "c"]


def test_what_is_larger_than_the_folder_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "store"
    folder = FeatureFolder(path, capacity_bytes=room(1, tmp_path))
    folder.write("a", tensor(0))
    folder.write("large", torch.zeros(2, WIDTH))
    assert names(path) == ["a"]
    FeatureFolder(tmp_path / "none", capacity_bytes=0).write("a", tensor(0))
    assert names(tmp_path / "none") == []


def test_a_large_folder_is_looked_at_seldom_and_keeps_its_bound(tmp_path: Path) -> None:
    """With room for 48 files it looks at every third, and makes room for three."""
    path = tmp_path / "store"
    bound = room(48, tmp_path)
    folder = FeatureFolder(path, capacity_bytes=bound)
    for i in range(60):
        folder.write(f"{i:02}", tensor(0))
        assert folder.num_bytes() <= bound
        assert len(names(path)) == (i + 1 if i < 48 else 46 + i % 3)
    assert names(path) == [f"{i:02}" for i in range(12, 60)]


def test_files_of_others_are_never_touched_and_old_drafts_go(tmp_path: Path) -> None:
    path = tmp_path / "store"
    folder = FeatureFolder(path, capacity_bytes=room(1, tmp_path))
    (path / "model.safetensors").write_bytes(bytes(1 << 16))
    (path / f"killed{DRAFT}").write_bytes(bytes(64))
    for file in path.iterdir():
        os.utime(file, (0, 0))
    (path / f"being written{DRAFT}").write_bytes(bytes(64))
    folder.write("a", tensor(0))
    assert names(path) == ["a", f"being written{DRAFT}", "model.safetensors"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"features\.folder = '.*file': cannot be made \(File exists\)"):
        FeatureFolder(tmp_path / "file", capacity_bytes=1)


def test_a_write_that_fails_leaves_a_warning_and_no_draft(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = FeatureFolder(tmp_path, capacity_bytes=1 << 20)
    (tmp_path / f"clip{SUFFIX}").mkdir()  # nothing can be renamed onto a folder
    with caplog.at_level(logging.WARNING):
        folder.write("clip", tensor(0))
    assert "clip is not kept" in caplog.text
    assert names(tmp_path) == ["clip"]


WORKER = """
import sys
from pathlib import Path
import torch
from motet.features.folder import FeatureFolder
folder = FeatureFolder(Path(sys.argv[1]), capacity_bytes=int(sys.argv[2]))
generator = torch.Generator().manual_seed(int(sys.argv[3]))
found = 0
for value in torch.randint(0, 24, (400,), generator=generator).tolist():
    read = folder.read(str(value))
    if read is None:
        folder.write(str(value), torch.full((1, 256), float(value)))
    else:
        found += 1
        assert read.tolist() == [[float(value)] * 256], value
assert found
"""


def test_processes_that_write_read_and_delete_at_once_do_no_harm(tmp_path: Path) -> None:
    """24 clips, room for 16: files come and go under readers and writers."""
    path, bound = tmp_path / "store", room(16, tmp_path)
    command = [sys.executable, "-W", "error", "-c", WORKER, str(path), str(bound)]
    workers = [
        subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE, text=True, env=os.environ) for seed in range(3)
    ]
    for worker in workers:
        _, errors = worker.communicate(timeout=120)
        assert (worker.returncode, errors) == (0, "")  # nor a warning of a file that was half there
    assert not [name for name in names(path) if name.endswith(DRAFT)]
    assert len(names(path)) <= 16 + 2
