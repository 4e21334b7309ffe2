"""Imports go one way. What is below never knows what is above; what stands side by side never goes in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "motet"

LAYERS = (
    {"types", "config", "compat", "identity"},
    {"protocols"},
    {"algorithms", "batching", "rewards", "data", "models", "features", "wire"},
    {"rollout", "trainer", "weights", "checkpoint", "metrics"},
    {"runtime", "eval", "report"},
    {"buffer", "loop", "build", "run"},
    {"cli"},
)
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}

PURE = ("types", "protocols", "config", "algorithms", "batching", "metrics.measures", "runtime.plan")
"""Never import what starts processes or needs a GPU."""
HEAVY = {"ray", "vllm", "megatron"}

TORCHLESS = (
    "motet.types",
    "motet.protocols",
    "motet.cli",
    "motet.config.checks",
    "motet.config.docs",
    "motet.metrics.log",
    "motet.metrics.measures",
    "motet.metrics.stages",
)


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all that is imported, within functions too; `from a import b` is `a.b`. What is imported for
    type checkers alone does not count."""
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    if isinstance(tree, ast.ImportFrom):
        assert tree.level == 0, "relative imports hide the direction"
        yield from (f"{tree.module}.{alias.name}" for alias in tree.names)
    children = ast.iter_child_nodes(tree)
    if isinstance(tree, ast.If) and ast.unparse(tree.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children = iter(tree.orelse)
    for child in children:
        yield from imports(child)


def packages(tree: ast.AST) -> set[str]:
    """The parts of motet that are imported: `motet.data.media.Clip` is `data`."""
    return {name.split(".")[1] for name in imports(tree) if name.startswith("motet.")}


def wrong(package: str, tree: ast.AST) -> set[str]:
    """What a module of `package` imports from above."""
    return {other for other in packages(tree) if RANK[other] > RANK[package]}


MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
    if path != SOURCE / "__init__.py"
}


def test_every_package_has_its_layer() -> None:
    assert {"types", "cli", "config", "metrics"} <= {name.split(".")[0] for name in MODULES} <= RANK.keys()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_one_way(name: str) -> None:
    assert wrong(name.split(".")[0], MODULES[name]) == set()


def test_packages_of_a_layer_go_in_no_circle() -> None:
    graph: dict[str, set[str]] = {}
    for name, tree in MODULES.items():
        package = name.split(".")[0]
        graph.setdefault(package, set()).update(packages(tree) - {package})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("name", sorted(m for m in MODULES if f"{m}.".startswith(tuple(f"{p}." for p in PURE))))
def test_pure_packages_import_no_ray_vllm_or_megatron(name: str) -> None:
    assert {other.split(".")[0] for other in imports(MODULES[name])} & HEAVY == set()


@pytest.mark.parametrize(
    ("source", "above"),
    [
        ("import motet.trainer.step", {"trainer"}),
        ("from motet import loop", {"loop"}),
        ("def f():\n    if True:\n        from motet.report.page import write", {"report"}),
        ("class A:\n    import motet.build as b", {"build"}),
        ("if TYPE_CHECKING:\n    from motet.loop import train\nelse:\n    import motet.cli", {"cli"}),
        ("from motet.types import Task\nimport motet.models.attention\nimport torch.trainer", set()),
    ],
)
def test_the_check_sees_what_data_imports_from_above(source: str, above: set[str]) -> None:
    assert wrong("data", ast.parse(source)) == above


def test_what_promises_to_load_no_torch_does_not() -> None:
    code = f"import sys, {', '.join(TORCHLESS)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
