from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from motet import cli
from motet.cli import main
from motet.config.load import ConfigError, dump, load
from motet.config.schema import DataConfig

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
    calls = stub("motet.run", "train")
    assert main(["train", *words]) == 0
    assert calls == [((load(None, [*SETTINGS, f"steps={steps}"]),), {"resume": resume})]


def test_train_checks_before_it_builds(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    calls = stub("motet.run", "train")
    assert main(["train", "recipe.toml", "rollout.group_size=1"]) == 2
    assert calls == []
    assert capsys.readouterr().err.startswith("motet: error: rollout.group_size = 1: should be at least 2")


def test_eval_takes_a_recipe_or_a_run(stub: Callable[..., Calls]) -> None:
    calls = stub("motet.run", "evaluate")
    Path("runs/lr=1e-3").mkdir(parents=True)
    Path("runs/lr=1e-3/config.toml").write_text(dump(load(None, [*SETTINGS, "steps=9"])))
    assert main(["eval", "recipe.toml"]) == 0
    assert main(["eval", "runs/lr=1e-3", "--model", "model", "--blind", "eval.max_rows=5"]) == 0
    assert [(args[0].steps, args[0].eval.max_rows, options) for args, options in calls] == [
        (7, None, {"model": None, "blind": False}),
        (9, 5, {"model": Path("model"), "blind": True}),
    ]


def test_eval_checks_its_own_needs(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    calls = stub("motet.run", "evaluate")
    assert main(["eval", "recipe.toml", "--model", "none"]) == 2
    assert calls == []
    assert capsys.readouterr().err.startswith("motet: error: --model = 'none': no such folder")


def test_export_takes_a_step_or_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("last", "-1"):
        with pytest.raises(SystemExit, match="2"):
            main(["export", "run", "out", f"--step={wrong}"])
        assert "argument --step: should be a number of steps, or best" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "module", "function", "call"),
    [
        (
            ["export", "run", "out"],
            "motet.checkpoint.export",
            "export",
            ((Path("run"), Path("out")), {"step": None, "dtype": None, "read_back": True}),
        ),
        (
            ["export", "run", "--step", "20", "--no-verify", "out"],
            "motet.checkpoint.export",
            "export",
            ((Path("run"), Path("out")), {"step": 20, "dtype": None, "read_back": False}),
        ),
        (
            ["export", "run", "out", "--step", "best", "--dtype", "bfloat16"],
            "motet.checkpoint.export",
            "export",
            ((Path("run"), Path("out")), {"step": "best", "dtype": "bfloat16", "read_back": True}),
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
            ["data", "convert", "chat", "in.json", "out.jsonl", "--media", "a", "--media", "b", "--heldout", "0.1"],
            "motet.data.formats.convert",
            "convert",
            (
                ("chat", Path("in.json"), Path("out.jsonl")),
                {"media": [Path("a"), Path("b")], "strict": False, "heldout": 0.1},
            ),
        ),
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


# ---- checking rows -----------------------------------------------------------------------------

GOOD_ROW = '{"question": "Which?", "options": ["x", "y"], "answer": "A"}\n'
OTHER_ROW = '{"question": "And which?", "options": ["x", "y"], "answer": "A"}\n'


@pytest.mark.parametrize(
    ("train", "heldout", "status", "last_line"),
    [
        (GOOD_ROW, OTHER_ROW, 0, "0 errors, 0 warnings"),
        (GOOD_ROW + GOOD_ROW, OTHER_ROW, 0, "0 errors, 1 warning"),
        (GOOD_ROW, "{\n", 1, "1 error, 0 warnings"),
    ],
)
def test_data_check_answers_with_its_status(
    capsys: pytest.CaptureFixture[str], train: str, heldout: str, status: int, last_line: str
) -> None:
    Path("train.jsonl").write_text(train)
    Path("heldout.jsonl").write_text(heldout)
    assert main(["data", "check", "train.jsonl", "--heldout", "heldout.jsonl"]) == status
    printed = capsys.readouterr()
    assert (printed.out.splitlines()[-1], printed.err) == (last_line, "")
    assert main(["data", "check", "train.jsonl", "--heldout", "heldout.jsonl", "--json"]) == status
    found = json.loads(capsys.readouterr().out)
    assert (found["num_errors"], len(found["findings"])) == (
        int(last_line[0]),
        found["num_errors"] + found["num_warnings"],
    )


@pytest.mark.parametrize(
    ("words", "data", "model"),
    [
        (["train.jsonl"], {"heldout": None}, ""),
        (["train.jsonl", "--heldout", "heldout.jsonl", "--model", "model"], {"heldout": "heldout.jsonl"}, "model"),
        (["train.jsonl", "--json", "data.max_prompt_tokens=9"], {"heldout": None, "max_prompt_tokens": 9}, ""),
        (["recipe.toml"], {"heldout": "heldout.jsonl"}, "model"),
        (["recipe.toml", "data.max_prompt_tokens=9"], {"heldout": "heldout.jsonl", "max_prompt_tokens": 9}, "model"),
        (["recipe.toml", "--heldout", "other.jsonl", "--model", "m"], {"heldout": "other.jsonl"}, "m"),
        (["run"], {"heldout": "heldout.jsonl"}, "model"),
    ],
)
def test_data_check_takes_rows_a_recipe_or_a_run(words: list[str], data: dict[str, Any], model: str) -> None:
    Path("run").mkdir()
    Path("run/config.toml").write_text(Path("recipe.toml").read_text())
    config = cli._rows_config(cli._parse(["data", "check", *words]))
    assert config.data == DataConfig(train="train.jsonl", **data)
    assert config.model.path == model


def test_data_check_measures_with_the_model(random_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.jsonl").write_text('{"question": "<think>?", "answer": "A"}\n')
    words = ["data", "check", "train.jsonl", "--model", str(random_checkpoint), "--json"]
    assert main([*words, "data.max_prompt_tokens=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"][0]["tokens"]["text"]["num_rows"] == 1
    assert found["files"][0]["tokens"]["text"]["min"] > 3
    assert found["counts"] == {"too_long": 1, "literal_token": 1}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["none.jsonl"], "data.train = 'none.jsonl': no such file; name your rows, or write toy ones: "),
        (["train.jsonl"], "train.jsonl: holds no rows\n"),
        (["train.jsonl", "--heldout", "train.jsonl"], "data.heldout = 'train.jsonl': is data.train too; "),
        (["train.jsonl", "--model", "none"], "model.path = 'none': no such folder; name a Hugging Face model folder"),
        (["train.jsonl", "heldout.jsonl"], "more than one recipe: train.jsonl, heldout.jsonl; "),
    ],
)
def test_data_check_refuses_what_is_not_there(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(["data", "check", *words]) == 2
    (printed,) = capsys.readouterr().err.splitlines(keepends=True)
    assert printed.startswith(f"motet: error: {line}")


def test_data_check_looks_at_some_rows(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.jsonl").write_text(GOOD_ROW + "{\n")
    assert main(["data", "check", "train.jsonl", "--max-rows", "1"]) == 0
    with pytest.raises(SystemExit) as caught:
        main(["data", "check", "train.jsonl", "--max-rows", "0"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("error: argument --max-rows: should be at least 1\n")


def test_progress_is_one_line_that_goes_away(capsys: pytest.CaptureFixture[str]) -> None:
    for done in range(3):
        cli._show_progress(Path("train.jsonl"), done, 2)
    clear = "\r\033[K"
    assert capsys.readouterr().err == f"{clear}train.jsonl: row 0 of 2{clear}train.jsonl: row 1 of 2{clear}"


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
    stub("motet.run", "train", error)
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
    stub("motet.run", "train", error)
    with pytest.raises(type(error)) as caught:
        main(["train", "recipe.toml"])
    assert caught.value is error


def test_the_traceback_of_a_mistake_on_demand(
    stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTET_TRACEBACK", "1")
    stub("motet.run", "train", BAD_ROW)
    assert main(["train", "recipe.toml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "motet: error: train.jsonl:3: no such media file 'a.png'"


def test_an_interrupt_is_130_without_traceback(stub: Callable[..., Calls], capsys: pytest.CaptureFixture[str]) -> None:
    stub("motet.run", "train", KeyboardInterrupt())
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
