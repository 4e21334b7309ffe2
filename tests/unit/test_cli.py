from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from motet.cli import main
from motet.config.load import ConfigError, dump, load

SETTINGS = ["run_dir=r", "model.path=model", "data.train=train.jsonl", "data.heldout=heldout.jsonl"]
Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("train.jsonl").touch()
    Path("heldout.jsonl").touch()
    Path("recipe.toml").write_text(dump(load(None, [*SETTINGS, "steps=7"])))
    return tmp_path


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Calls]:
    """Puts a module in the place of one that a command calls. Its function records its calls, or raises."""

    def put(module: str, function: str, error: BaseException | None = None) -> Calls:
        calls: Calls = []

        def record(*args: Any, **options: Any) -> Path:
            calls.append((args, options))
            if error is not None:
                raise error
            return Path("written")

        stand_in = ModuleType(module)
        setattr(stand_in, function, record)
        parent, _, name = module.rpartition(".")
        monkeypatch.setattr(import_module(parent), name, stand_in, raising=False)
        monkeypatch.setitem(sys.modules, module, stand_in)
        return calls

    return put


# ---- what is called ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "steps", "resume"),
    [
        (["recipe.toml"], 7, False),
        (["recipe.toml", "steps=3"], 3, False),
        (["recipe.toml", "--resume", "steps=3"], 3, True),  # settings after an option
        (["--resume", "steps=3", "recipe.toml"], 3, True),
        ([*SETTINGS, "steps=4"], 4, False),  # no recipe
    ],
)
def test_train(stub: Callable[..., Calls], words: list[str], steps: int, resume: bool) -> None:
    calls = stub("motet.build", "train")
    assert main(["train", *words]) == 0
    assert calls == [((load(None, [*SETTINGS, f"steps={steps}"]),), {"resume": resume})]


def test_train_checks_before_it_builds(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    calls = stub("motet.build", "train")
    assert main(["train", "recipe.toml", "rollout.group_size=1"]) == 2
    assert calls == []
    assert capsys.readouterr().err.startswith("motet: error: rollout.group_size = 1: should be at least 2")


def test_eval_takes_a_recipe_or_a_run(stub: Callable[..., Calls]) -> None:
    calls = stub("motet.build", "evaluate")
    Path("runs/lr=1e-3").mkdir(parents=True)
    Path("runs/lr=1e-3/config.toml").write_text(dump(load(None, [*SETTINGS, "steps=9"])))
    assert main(["eval", "recipe.toml"]) == 0
    assert main(["eval", "runs/lr=1e-3", "--model", "model", "--blind", "eval.max_rows=5"]) == 0
    assert [(args[0].steps, args[0].eval.max_rows, options) for args, options in calls] == [
        (7, None, {"model": None, "blind": False}),
        (9, 5, {"model": Path("model"), "blind": True}),
    ]


def test_eval_checks_its_own_needs(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    calls = stub("motet.build", "evaluate")
    assert main(["eval", "recipe.toml", "--model", "none"]) == 2
    assert calls == []
    assert capsys.readouterr().err.startswith("motet: error: --model = 'none': no such folder")


@pytest.mark.parametrize(
    ("words", "module", "function", "call"),
    [
        (["export", "run", "out"], "motet.checkpoint.export", "export", ((Path("run"), Path("out")), {"step": None})),
        (
            ["export", "run", "out", "--step", "20"],
            "motet.checkpoint.export",
            "export",
            ((Path("run"), Path("out")), {"step": 20}),
        ),
        (
            ["export", "run", "out", "--step", "best"],
            "motet.checkpoint.export",
            "export",
            ((Path("run"), Path("out")), {"step": "best"}),
        ),
        (["report", "run"], "motet.report.page", "write", ((Path("run"),), {})),
        (["tiny", "out"], "motet.models.qwen3_omni.tiny", "build", ((Path("out"),), {})),
        (
            ["tiny", "out", "--seed", "0", "--warm-steps", "0"],
            "motet.models.qwen3_omni.tiny",
            "build",
            ((Path("out"),), {"seed": 0, "warm_steps": 0}),
        ),
        (["data", "toy", "out"], "motet.data.toy", "write", ((Path("out"),), {})),
        (
            ["data", "toy", "out", "--seed", "3", "--train", "20", "--heldout", "10"],
            "motet.data.toy",
            "write",
            ((Path("out"),), {"seed": 3, "num_train": 20, "num_heldout": 10}),
        ),
    ],
)
def test_the_other_commands(
    stub: Callable[..., Calls], words: list[str], module: str, function: str, call: Any
) -> None:
    calls = stub(module, function)
    assert main(words) == 0
    assert calls == [call]


def test_config_prints_what_a_run_would_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "recipe.toml", "algorithm.kind=rloo"]) == 0
    Path("printed.toml").write_text(capsys.readouterr().out)
    assert load(Path("printed.toml"), []) == load(None, [*SETTINGS, "steps=7", "algorithm.kind=rloo"])


# ---- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["config", "recipe.toml", "trainer.optimiser.lr=1"],
            "command line: unknown setting 'trainer.optimiser.lr'; did you mean 'trainer.optimizer.lr'?",
        ),
        (["config", "nope.toml"], "nope.toml: no such file; give a TOML file of settings"),
        (["config", "model"], "model/config.toml: no such file; give a TOML file of settings"),
        (["config", "a", "b"], "more than one recipe: a, b; an override is written a.b=value"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"motet: error: {line}\n")


BAD_ROW = ValueError("train.jsonl:3: no such media file 'a.png'")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BAD_ROW, "train.jsonl:3: no such media file 'a.png'"),
        (FileNotFoundError(2, "No such file or directory", "rows.jsonl"), "rows.jsonl: no such file or folder"),
        (FileNotFoundError("run 'r' has no checkpoint"), "run 'r' has no checkpoint"),
        (ConfigError("first = 1: too low\nsecond = 2: too high"), "first = 1: too low\nsecond = 2: too high"),
        (ExceptionGroup("tasks", [BAD_ROW, ValueError("later")]), "train.jsonl:3: no such media file 'a.png'"),
        (ExceptionGroup("outer", [ExceptionGroup("inner", [BAD_ROW])]), "train.jsonl:3: no such media file 'a.png'"),
    ],
)
def test_a_users_error_is_its_line(
    stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str], error: Exception, line: str
) -> None:
    stub("motet.build", "train", error)
    assert main(["train", "recipe.toml"]) == 2
    assert capsys.readouterr().err == f"motet: error: {line}\n"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("ours"),
        AssertionError("ours"),
        ValueError("a library's\nlong explanation"),
        ExceptionGroup("tasks", [BAD_ROW, RuntimeError("ours")]),
    ],
)
def test_our_error_is_a_traceback(stub: Callable[..., Calls], error: Exception) -> None:
    stub("motet.build", "train", error)
    with pytest.raises(type(error)) as caught:
        main(["train", "recipe.toml"])
    assert caught.value is error


def test_the_traceback_of_a_mistake_on_demand(
    stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTET_TRACEBACK", "1")
    stub("motet.build", "train", BAD_ROW)
    assert main(["train", "recipe.toml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "motet: error: train.jsonl:3: no such media file 'a.png'"


def test_an_interrupt_is_130_without_traceback(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    stub("motet.build", "train", KeyboardInterrupt())
    assert main(["train", "recipe.toml"]) == 130
    assert capsys.readouterr().err == "motet: interrupted\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["train", "recipe.toml", "--resme"], "motet: error: unrecognized arguments: --resme"),
        (["report", "run", "steps=3"], "motet: error: unrecognized arguments: steps=3"),
        (["train"], "motet train: error: the following arguments are required: RECIPE|a.b=value"),
        ([], "motet: error: the following arguments are required: COMMAND"),
    ],
)
def test_wrong_arguments_are_refused(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == line


# ---- how fast ----------------------------------------------------------------------------------


def test_help_answers_at_once() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "motet.cli", "--help"], check=True, capture_output=True, text=True)
        assert "train a model as a recipe says" in done.stdout
        return time.perf_counter() - started

    assert min(seconds() for _ in range(3)) < 0.5


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom motet.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pydantic'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stderr == "[]\n"
