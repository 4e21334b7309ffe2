"""The schema seen as a list: sections by dotted name. Error messages and the generated documentation read it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from motet.config.schema import RunConfig, Section


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSection:
    """`NamedSection(name="trainer.optimizer", model=OptimizerConfig, doc="")`; the top level is named ``."""

    name: str
    model: type[Section]
    doc: str
    """Of the field that holds the section."""
    default: bool = True
    """Whether an unset section is this one, rather than another member of its union."""

    @property
    def kind(self) -> str | None:
        """Which member of a union by `kind` this is; unset for a section that comes in one form."""
        return kind_of(self.model)

    def setting(self, field: str) -> str:
        return f"{self.name}.{field}" if self.name else field


def sections(top: NamedSection | None = None) -> Iterator[NamedSection]:
    """A section and all below it, depth first in the order of the schema. Members of a union share their name."""
    top = top or NamedSection(name="", model=RunConfig, doc="")
    yield top
    for key, field in top.model.model_fields.items():
        for member in members(field.annotation):
            default = field.is_required() or isinstance(field.default, member)
            doc = field.description or ""
            yield from sections(NamedSection(name=top.setting(key), model=member, doc=doc, default=default))


def members(annotation: Any) -> tuple[type[Section], ...]:
    """The sections that a field of this type may hold: none for a plain value, several for a union by `kind`."""
    choices = get_args(annotation) or (annotation,)
    return tuple(c for c in choices if isinstance(c, type) and issubclass(c, Section))


def kind_of(model: type[Section]) -> str | None:
    """The one value that `kind` may have in this section. `AlgorithmConfig.kind` has many: it is a plain setting."""
    field = model.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return None
    values = get_args(field.annotation)
    return str(values[0]) if len(values) == 1 else None
