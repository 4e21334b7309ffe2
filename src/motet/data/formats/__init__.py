"""Published data sets become row files. A format is a function: one item as published -> one row of ours, or RowError.

item --FORMATS[name](item, clips)--> row --to_task--> checked --> a line of OUT
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from motet.data.formats import audiomcq, avqa, chat, llava

FORMATS: dict[str, Callable[..., dict[str, Any]]] = {
    "avqa": avqa.row,
    "audiomcq": audiomcq.row,
    "chat": chat.row,
    "llava": llava.row,
}
