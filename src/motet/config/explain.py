"""What pydantic found wrong, in the words of the person who wrote the settings: one line per fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from motet.config.schema import RunConfig, Section
from motet.config.settings import kind_of, members, sections

ENOUGH_ALIKE = 1.0
"""What a name must reach to be suggested; 2 is the same name. `algorithm.lr` finds `trainer.optimizer.lr` by its last
part, while `model.foo` does not find `model.path` by its first."""


def explain(error: ValidationError) -> Iterator[tuple[str, str]]:
    """The setting and the line about it, for every fault.

    Unknown names come first: a misspelt section is also why another one is missing.
    """
    for fault in sorted(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden"):
        name, kind = _name(fault["loc"])
        if fault["type"] == "extra_forbidden":
            name = _first_leaf(name, fault["input"])
            yield name, _unknown(name, kind)
        elif fault["type"] == "missing" and isinstance(fault["loc"][-1], str):
            yield name, _missing(name)
        else:
            yield _refused(name, fault)


def _name(loc: Sequence[str | int]) -> tuple[str, str | None]:
    """The dotted name of a place in the input, and the kind of the innermost union around it.

    Pydantic's path holds the kind, `("reward", "score", "choice", "format_weight")`, and places within a list; the
    name of a setting holds neither.
    """
    name, kind = "", None
    choices: tuple[type[Section], ...] = (RunConfig,)
    for part in loc:
        if len(choices) > 1:
            kind = str(part)
            choices = tuple(c for c in choices if kind_of(c) == kind)
        elif isinstance(part, str):
            name = f"{name}.{part}" if name else part
            field = choices[0].model_fields.get(part) if choices else None
            choices = members(field.annotation) if field else ()
    return name, kind


def _first_leaf(name: str, value: Any) -> str:
    while isinstance(value, dict) and value:
        key, value = next(iter(value.items()))
        name = f"{name}.{key}"
    return name


def _unknown(name: str, kind: str | None) -> str:
    known = {section.setting(key): section.kind for section in sections() for key in section.model.model_fields}
    parent, _, leaf = name.rpartition(".")
    if name in known:
        return f"setting '{name}' is for {parent}.kind '{known[name]}', and the kind here is '{kind}'"

    def likeness(other: str) -> float:
        return _ratio(name, other) + _ratio(leaf, other.rpartition(".")[2])

    nearest = max(known, key=likeness)
    if likeness(nearest) >= ENOUGH_ALIKE:
        return f"unknown setting '{name}'; did you mean '{nearest}'?"
    siblings = [key for key in known if key.rpartition(".")[0] == parent] or [s for s in known if "." not in s]
    return f"unknown setting '{name}'; known here: {', '.join(siblings)}"


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def _missing(name: str) -> str:
    """A missing section is spoken of by the first setting that it must have."""
    for section in sections():
        for key, field in section.model.model_fields.items():
            setting = section.setting(key)
            if f"{setting}.".startswith(f"{name}.") and field.is_required() and not members(field.annotation):
                return f"missing setting '{setting}': {' '.join((field.description or '').split())}"
    raise AssertionError(name)


def _refused(name: str, fault: ErrorDetails) -> tuple[str, str]:
    kinds = [f"'{s.kind}'" for s in sections() if s.name == name and s.kind]
    match fault["type"]:
        case "union_tag_not_found":
            return f"{name}.kind", f"missing setting '{name}.kind': should be {_either(kinds)}"
        case "union_tag_invalid":
            return f"{name}.kind", f"{name}.kind = {fault['ctx']['tag']!r}: should be {_either(kinds)}"
        case "model_type" | "model_attributes_type":
            example = f", such as {{kind = {kinds[0]}}}" if kinds else ""
            return name, f"{name} = {fault['input']!r}: should be a section of settings{example}"
        case "tuple_type":
            return name, f"{name} = {fault['input']!r}: should be a list"
        case "missing" | "too_long":
            return (
                name,
                f"{name} = {fault['input']!r}: has too {'few' if fault['type'] == 'missing' else 'many'} values",
            )
        case _:
            return name, f"{name} = {fault['input']!r}: {fault['msg'].removeprefix('Input ')}"


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
