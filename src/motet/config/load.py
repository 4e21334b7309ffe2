"""TOML file and `a.b=value` overrides -> RunConfig, and back.

load(Path("recipes/tiny.toml"), ["steps=3", "algorithm.kind=rloo", "data.media_roots=['media']"])
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from motet.config.explain import explain
from motet.config.schema import RunConfig


class ConfigError(ValueError):
    """A setting is unknown, missing or not allowed. One line per fault: where it is, which one, what is allowed."""


def load(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read the settings of a run.

    An override `a.b=value` replaces what the file says. Its value is read as TOML, and as plain text where it is no
    TOML, so `algorithm.kind=rloo` needs no quotes. A whole section is `reward.score={kind="math"}`. Relative paths
    among the settings are relative to the current directory.

    Raises `ConfigError`.
    """
    data = {} if path is None else _read(path)
    for override in overrides:
        _apply(data, override)
    overridden = [override.partition("=")[0] for override in overrides]

    def origin(name: str) -> str:
        here = path is None or any(f"{name}.".startswith(f"{o}.") for o in overridden)
        return "command line" if here else str(path)

    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{origin(name)}: {text}" for name, text in explain(error))) from None


def dump(config: RunConfig) -> str:
    """TOML that `load` reads back to an equal config. Unset settings are left out: unset is their default."""
    return "\n".join(_table(config.model_dump(exclude_none=True), "")) + "\n"


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a TOML file of settings")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _apply(data: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    if not equals or not all(name.split(".")):
        raise ConfigError(f"command line: '{override}' is no override; write name=value, such as steps=10")
    *parents, key = name.split(".")
    for depth, parent in enumerate(parents, 1):
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise ConfigError(f"command line: cannot set '{name}': '{'.'.join(parents[:depth])}' is no section")
    try:
        data[key] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        data[key] = text


def _table(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Lines of a table: its values, then the tables below it under their full names, as TOML wants them."""
    if name:
        yield f"\n[{name}]"
    yield from (f"{key} = {_literal(value)}" for key, value in table.items() if not isinstance(value, dict))
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _table(value, f"{name}.{key}" if name else key)


def _literal(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            # JSON's escapes are TOML's, except that TOML wants DEL escaped too.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return f"[{', '.join(map(_literal, value))}]"
