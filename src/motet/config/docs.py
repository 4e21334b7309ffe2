"""docs/configuration.md, generated from the schema: `python -m motet.config.docs > docs/configuration.md`."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo

from motet.config.settings import NamedSection, members, sections

INTRODUCTION = """\
# Configuration

Generated from `motet/config/schema.py` by `python -m motet.config.docs`; do not edit.

A run is described by a TOML file, a *recipe*. Any setting can be given on the command line as `a.b=value`, which
replaces what the recipe says:

    motet train recipes/tiny.toml steps=60 trainer.optimizer.lr=3e-4 'reward.score={kind = "math"}'

An unknown setting is refused. `motet config RECIPE` prints every setting as a run would use it, and a run keeps that
text as `config.toml` in its folder. Relative paths are relative to the current directory.
"""


def markdown() -> str:
    return INTRODUCTION + "".join(_section(section) for section in sections())


def _section(section: NamedSection) -> str:
    fields = section.model.model_fields
    kind_doc = (fields["kind"].description or "") if section.kind else ""
    rows = [
        _row(name, field)
        for name, field in fields.items()
        if not members(field.annotation) and not (section.kind and name == "kind")
    ]
    if not rows and not section.kind:
        return ""
    title = f"`{section.name}`" if section.name else "Top level"
    if section.kind:
        title += f', `kind = "{section.kind}"`' + (" (default)" if section.default else "")
    paragraphs = [f"## {title}", _flat(f"{section.doc} {kind_doc}")]
    if rows:
        paragraphs.append("\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows]))
    return "".join(f"\n{paragraph}\n" for paragraph in paragraphs if paragraph)


def _row(name: str, field: FieldInfo) -> str:
    default = "*required*" if field.is_required() else _default(field.default)
    cells = (f"`{name}`", _type(field), default, _flat(field.description or ""))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _flat(text: str) -> str:
    return " ".join(text.split())


def _default(value: Any) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return f"`{str(value).lower()}`"
        case str():
            return f'`"{value}"`'
        case tuple():
            return f"`{list(value)}`"
        case _:
            return f"`{value}`"


def _type(field: FieldInfo) -> str:
    return " ".join((_words(field.annotation), ", ".join(_bounds(field)))).rstrip()


def _words(annotation: Any) -> str:
    """A type in plain words. `X | None` reads as X: the default tells that it may be unset."""
    arguments = [a for a in get_args(annotation) if a is not type(None)]
    if get_origin(annotation) is Literal:
        return ", ".join(f'`"{value}"`' for value in arguments)
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if get_origin(annotation) is tuple:
        element = _words(arguments[0])
        return f"list of {element}" if Ellipsis in arguments else f"list of {len(arguments)} {element}s"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}[annotation]


def _bounds(field: FieldInfo) -> Iterator[str]:
    for bound in field.metadata:
        match bound:
            case at.Ge():
                yield f"≥ {bound.ge:g}"
            case at.Gt():
                yield f"> {bound.gt:g}"
            case at.Le():
                yield f"≤ {bound.le:g}"
            case at.Lt():
                yield f"< {bound.lt:g}"


if __name__ == "__main__":
    print(markdown(), end="")
