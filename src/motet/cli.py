"""The `motet` command. Each subcommand is a function here; what is heavy is imported inside it.

A user's mistake is one line, `motet: error: ...`, and exit status 2; ours is a traceback and 1; an interrupt is 130.
`MOTET_TRACEBACK=1` shows the traceback of a mistake too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
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
        args.command(args)
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
    return 0


# ---- commands ----------------------------------------------------------------------------------


def run_train(args: argparse.Namespace) -> None:
    from motet.config.checks import check

    config = _config(args.words)
    check(config)

    from motet import build

    build.train(config, resume=args.resume)


def run_eval(args: argparse.Namespace) -> None:
    from motet.config.checks import check_evaluation

    config = _config(args.words)
    check_evaluation(config, args.model)

    from motet import build

    build.evaluate(config, model=args.model, blind=args.blind)


def run_export(args: argparse.Namespace) -> None:
    from motet.checkpoint import export

    export.export(args.run, args.out, step=args.step)
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

    def command(name: str, function: Callable[[argparse.Namespace], None], does: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        sub.set_defaults(command=function)
        return sub

    sub = command("train", run_train, "train a model as a recipe says")
    _add_settings(sub)
    sub.add_argument("--resume", action="store_true", help="go on from the last checkpoint of the run")

    sub = command("eval", run_eval, "measure held-out accuracy")
    _add_settings(sub)
    sub.add_argument("--model", type=Path, metavar="DIR", help="evaluate this Hugging Face folder, not model.path")
    sub.add_argument("--blind", action="store_true", help="withhold all media: what the text alone gives away")

    sub = command("export", run_export, "write a checkpoint of a run as a Hugging Face folder")
    sub.add_argument("run", type=Path, metavar="RUN", help="run folder")
    sub.add_argument("out", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--step", type=_step, metavar="N|best", help="which checkpoint; the latest if not given")

    sub = command("report", run_report, "write the HTML report of a run")
    sub.add_argument("run", type=Path, metavar="RUN", help="run folder")

    sub = command("tiny", run_tiny, "build a tiny model of the Qwen3-Omni family")
    sub.add_argument("out", type=Path, metavar="DIR", help="folder to write")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of weights and warm start")
    sub.add_argument("--warm-steps", type=int, metavar="N", help="supervised steps; 0 leaves the model random")

    _add_data(command("data", run_data_toy, "make a data set"))

    sub = command("config", run_config, "print every setting as a run would use it")
    _add_settings(sub)
    return parser


def _step(text: str) -> int | str:
    return text if text == "best" else int(text)


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


if __name__ == "__main__":
    sys.exit(main())
