"""The `motet` command. Each subcommand is a function here; what is heavy is imported inside it.

A user's mistake is one line, `motet: error: ...`, and exit status 2; ours is a traceback and 1; an interrupt is 130.
`motet data check` answers with its status too: 1 where it finds an error.
`MOTET_TRACEBACK=1` shows the traceback of a mistake too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from motet.config.schema import RunConfig

OVERRIDE = re.compile(r"[\w.]+=")
"""How `a.b=value` begins. A path such as `runs/lr=1e-3` does not: it has a slash first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    # Idle threads of the math library sleep instead of spinning: beside any other busy process, spinning makes small
    # models ten times slower. It is read when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = _parse(argv)
    try:
        status = args.command(args)
    except KeyboardInterrupt:
        print("motet: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        mistake = _mistake(error)
        if mistake is None:
            raise
        if os.environ.get("MOTET_TRACEBACK") == "1":
            traceback.print_exc()
        print(f"motet: error: {mistake}", file=sys.stderr)
        return 2
    return status or 0


# ---- commands ----------------------------------------------------------------------------------


def run_train(args: argparse.Namespace) -> None:
    from motet.config.checks import check

    config = _config(args.words)
    check(config)

    from motet import run

    run.train(config, resume=args.resume)


def run_eval(args: argparse.Namespace) -> None:
    from motet.config.checks import check_evaluation

    config = _config(args.words)
    check_evaluation(config, args.model)

    from motet import run

    run.evaluate(config, model=args.model, blind=args.blind)


def run_export(args: argparse.Namespace) -> None:
    from motet.checkpoint import export

    if args.adapter:
        if args.dtype or not args.read_back:
            raise ValueError("--dtype and --no-verify are for an export of all weights: leave them out with --adapter")
        export.export_adapter(args.run, args.out, step=args.step)
    else:
        export.export(args.run, args.out, step=args.step, dtype=args.dtype, read_back=args.read_back)
    print(f"wrote {args.out}")


def run_report(args: argparse.Namespace) -> None:
    from motet.report import page

    print(f"wrote {page.write(args.run)}")


def run_tiny(args: argparse.Namespace) -> None:
    from motet.models.qwen3_omni import tiny

    tiny.build(args.out, **_given(args, "seed", "warm_steps"))
    print(f"wrote {args.out}")


def run_data_toy(args: argparse.Namespace) -> None:
    from motet.data import toy

    toy.write(args.out, **_given(args, "seed", "num_train", "num_heldout"))
    print(f"wrote {args.out}")


def run_data_convert(args: argparse.Namespace) -> None:
    from motet.data.formats.convert import convert

    options = _given(args, "media", "form", "strict", "heldout", "heldout_out", "seed")
    print(convert(args.format, args.source, args.out, **options))


def run_data_check(args: argparse.Namespace) -> int:
    from motet.config.checks import check_rows

    config = _rows_config(args)
    check_rows(config)

    from motet.data import doctor
    from motet.data.decode import Decoder

    data = config.data
    renderer: Any = None
    special_tokens: Collection[str] = ()
    with Decoder(
        num_workers=data.decode_workers, timeout_seconds=data.decode_timeout_seconds, cache_bytes=data.cache_bytes
    ) as decoder:
        if config.model.path:
            from motet.models.spec import spec_of

            model = Path(config.model.path)
            unlimited = data.model_copy(update={"max_prompt_tokens": sys.maxsize})
            renderer = spec_of(model).renderer(model, unlimited, Path(data.train).parent, decoder)
            special_tokens = renderer.tokenizer.get_added_vocab()
        found = doctor.check(
            data,
            decode=decoder,
            renderer=renderer,
            special_tokens=special_tokens,
            max_rows=args.max_rows,
            progress=_show_progress if sys.stderr.isatty() else lambda *_: None,
        )
    print(json.dumps(found.to_json(), indent=2) if args.json else found.table())
    return 1 if found.count("error") else 0


def run_config(args: argparse.Namespace) -> None:
    from motet.config.load import dump

    print(dump(_config(args.words)), end="")


def _config(words: Sequence[str]) -> RunConfig:
    """Settings from `[RECIPE | RUN] [a.b=value ...]`; of a run folder, those it ran with."""
    from motet.config.load import ConfigError, load

    paths = [Path(word) for word in words if not OVERRIDE.match(word)]
    if len(paths) > 1:
        raise ConfigError(f"more than one recipe: {', '.join(map(str, paths))}; an override is written a.b=value")
    path = paths[0] if paths else None
    if path is not None and path.is_dir():
        path /= "config.toml"
    return load(path, [word for word in words if OVERRIDE.match(word)])


def _rows_config(args: argparse.Namespace) -> RunConfig:
    """Settings of a recipe or a run folder; of a row file, the defaults, and no model but by `--model`."""
    options = {"data.heldout": args.heldout, "model.path": args.model}
    given = [f"{name}={json.dumps(str(path))}" for name, path in options.items() if path is not None]
    overrides = [word for word in args.words if OVERRIDE.match(word)]
    paths = [word for word in args.words if not OVERRIDE.match(word)]
    if len(paths) != 1 or paths[0].endswith(".toml") or Path(paths[0], "config.toml").is_file():
        return _config([*args.words, *given])
    rows = ['run_dir=""', 'model.path=""', f"data.train={json.dumps(paths[0])}"]
    return _config([*rows, *overrides, *given])


def _show_progress(path: Path, done: int, total: int) -> None:
    """One line on the terminal, written over and at last cleared."""
    line = f"{path}: row {done} of {total}" if done < total else ""
    print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options that were given; the others keep the defaults of the function called, their only home."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


# ---- mistakes ----------------------------------------------------------------------------------


def _mistake(error: Exception) -> str | None:
    """The line for the user, or None where the fault is ours. In a group, all must be the user's; the first counts."""
    lines = [_line(leaf) for leaf in _leaves(error)]
    return lines[0] if None not in lines else None


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: Exception) -> str | None:
    from motet.config.load import ConfigError

    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename}: no such file or folder"
    # Libraries raise ValueError too. Their long ones are no message to a user; ours has one line, or one per setting.
    if isinstance(error, ConfigError) or (isinstance(error, ValueError | FileNotFoundError) and "\n" not in str(error)):
        return str(error)
    return None


# ---- arguments ---------------------------------------------------------------------------------


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    # argparse takes no positionals after an option, as in `train RECIPE --resume steps=60`: it returns them as rest.
    args, rest = parser.parse_known_args(argv)
    if rest and ("words" not in args or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        args.words += rest
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="motet", description="RL post-training for omni-modal language models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")

    def command(name: str, function: Callable[[argparse.Namespace], int | None], does: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        sub.set_defaults(command=function)
        return sub

    sub = command("train", run_train, "train a model as a recipe says")
    _add_settings(sub)
    sub.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint of the run, or begin where there is none"
    )

    sub = command("eval", run_eval, "measure held-out accuracy")
    _add_settings(sub)
    sub.add_argument("--model", type=Path, metavar="DIR", help="evaluate this Hugging Face folder, not model.path")
    sub.add_argument("--blind", action="store_true", help="withhold all media: what the text alone gives away")

    sub = command("export", run_export, "write a checkpoint of a run as a Hugging Face folder")
    sub.add_argument("run", type=Path, metavar="RUN", help="run folder")
    sub.add_argument("out", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--step", type=_step, metavar="N|best", help="which checkpoint; the latest if not given")
    does = "write all weights as this, not as in the base model: float32 or bfloat16"
    sub.add_argument("--dtype", choices=("float32", "bfloat16"), metavar="DTYPE", help=does)
    does = "do not read weights and logits back"
    sub.add_argument("--no-verify", dest="read_back", action="store_false", help=does)
    does = "write the adapters of a run with trainer.lora as a peft folder; without it they are merged"
    sub.add_argument("--adapter", action="store_true", help=does)

    sub = command("report", run_report, "write the HTML report of a run")
    sub.add_argument("run", type=Path, metavar="RUN", help="run folder")

    sub = command("tiny", run_tiny, "build a tiny model of the Qwen3-Omni family")
    sub.add_argument("out", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of weights and warm start")
    sub.add_argument("--warm-steps", type=int, metavar="N", help="supervised steps; 0 leaves the model random")

    _add_data(command("data", run_data_toy, "make, convert or check a data set"))

    sub = command("config", run_config, "print every setting as a run would use it")
    _add_settings(sub)
    return parser


def _step(text: str) -> int | str:
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError("should be a number of steps, or best")
    return text if text == "best" else int(text)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("should be at least 1")
    return int(text)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    does = "a TOML file or a run folder, and settings that replace what it says"
    parser.add_argument("words", nargs="+", metavar="RECIPE|a.b=value", help=does)


def _add_data(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(required=True, metavar="KIND", title="kinds")
    does = "multiple-choice rows about real images, sounds and videos, in a training and a held-out file"
    toy = kinds.add_parser("toy", help=does, description=f"Write {does}.")
    toy.add_argument("out", type=Path, metavar="DIR", help="folder to write")
    toy.add_argument("--seed", type=int, metavar="N", help="seed of everything drawn")
    toy.add_argument("--train", dest="num_train", type=int, metavar="N", help="rows to train on")
    toy.add_argument("--heldout", dest="num_heldout", type=int, metavar="N", help="rows to evaluate on")

    does = "what is wrong with rows and their media; status 1 if that is an error"
    check = kinds.add_parser("check", help=does, description=f"Find {does}.")
    check.set_defaults(command=run_data_check)
    does = (
        "a row file, or a recipe or run folder that names one, and settings that replace the recipe's or the defaults"
    )
    check.add_argument("words", nargs="+", metavar="FILE|a.b=value", help=does)
    check.add_argument("--heldout", type=Path, metavar="FILE", help="held-out rows, which must share nothing with FILE")
    check.add_argument("--model", type=Path, metavar="DIR", help="measure prompts with this Hugging Face folder")
    check.add_argument("--max-rows", type=_positive, metavar="N", help="look at the first rows only")
    check.add_argument("--json", action="store_true", help="all findings, for machines")

    does = "rows from a published data set"
    convert = kinds.add_parser("convert", help=does, description=f"Write {does}.")
    convert.set_defaults(command=run_data_convert)
    convert.add_argument("format", metavar="FORMAT", help="avqa, audiomcq, chat or llava")
    convert.add_argument("source", type=Path, metavar="IN", help="annotations: .json, .jsonl or .parquet")
    convert.add_argument("out", type=Path, metavar="OUT", help="the .jsonl file to write")
    does = "where the clips are, if not beside IN; may be given again"
    convert.add_argument("--media", type=Path, action="append", metavar="DIR", help=does)
    convert.add_argument("--form", metavar="FORM", help="of avqa: video (default), image+audio or audio")
    convert.add_argument("--strict", action="store_true", help="end at the first item that gives no row")
    does = "how many rows to hold out, or below 1 which share of them, with clips of their own"
    convert.add_argument("--heldout", type=float, metavar="N", help=does)
    convert.add_argument("--heldout-out", type=Path, metavar="FILE", help="where to write those, beside OUT")
    convert.add_argument("--seed", type=int, metavar="N", help="seed of which rows are held out")


if __name__ == "__main__":
    sys.exit(main())
