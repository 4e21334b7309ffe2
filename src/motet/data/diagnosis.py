"""What the data doctor found, as values, as JSON, and as a table of one screen. docs/data.md lists the keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from motet.data.blind import BlindAccuracy
from motet.types import IntArray

Level = Literal["error", "warning"]

LEVELS: Mapping[str, Level] = {
    "bad_json": "error",
    "bad_messages": "error",
    "bad_media": "error",
    "bad_options": "error",
    "bad_answer": "error",
    "unreadable_media": "error",
    "unrenderable": "error",
    "shared_media": "error",
    "shared_question": "error",
    "shared_text": "warning",
    "too_long": "warning",
    "literal_token": "warning",
    "duplicate_id": "warning",
    "duplicate_media": "warning",
    "duplicate_question": "warning",
    "adjusted_rate": "warning",
    "answer_in_text": "warning",
}
"""Every finding there is, in the order of the table. The first five are `RowError.reason`."""

NUM_EXAMPLES = 3
NUM_BINS = 10
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding(code="bad_json", file="data/train.jsonl", message="train.jsonl:3: not valid JSON: ...")"""

    code: str
    file: str
    message: str
    """One line that begins with the row, `file:line: `, unless it is about the whole file."""

    @property
    def level(self) -> Level:
        return LEVELS[self.code]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Of prompts, in tokens. Percentiles are lengths that occur: p95 is the smallest that 95 % do not exceed.

    Of 1, 2, 3 and 10 tokens: Lengths(num_rows=4, min=1, median=2, p95=10, max=10,
                                      edges=(1.0, 1.9, ..., 10.0), counts=(1, 1, 1, 0, 0, 0, 0, 0, 0, 1))
    """

    num_rows: int
    min: int
    median: int
    p95: int
    max: int
    edges: tuple[float, ...]
    """[NUM_BINS + 1], of the bins of the histogram"""
    counts: tuple[int, ...]
    """[NUM_BINS], rows in each bin"""

    @classmethod
    def of(cls, lengths: IntArray) -> Lengths:
        """`lengths` i[N], N at least 1."""
        low, median, p95, high = np.percentile(lengths, (0, 50, 95, 100), method="inverted_cdf")
        counts, edges = np.histogram(lengths, NUM_BINS)
        return cls(
            num_rows=len(lengths),
            min=int(low),
            median=int(median),
            p95=int(p95),
            max=int(high),
            edges=tuple(map(float, edges)),
            counts=tuple(map(int, counts)),
        )

    @property
    def bars(self) -> str:
        """The histogram in a word; a bin without rows is a space."""
        top = max(self.counts)
        return "".join(BARS[(len(BARS) * n - 1) // top] if n else " " for n in self.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of rows: how often a letter is right, and how often it would be if each row's right option were drawn."""

    actual: float
    even: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    path: str
    num_rows: int
    """Rows looked at, bad ones included."""
    num_clips: int
    """Clips that could be read."""
    num_distinct_clips: int
    modalities: Mapping[str, int]
    """Good rows, by `Task.modality`."""
    tokens: Mapping[str, Lengths]
    """Length of prompts, by `Task.modality`; empty without a model."""
    answers: Mapping[str, Share]
    """Good rows with options, by the letter of the right one."""
    blind: BlindAccuracy | None
    """Over rows with media and options; None where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    files: Sequence[FileReport]
    """The rows to train on and, where there are any, the held-out ones."""
    findings: Sequence[Finding]
    max_prompt_tokens: int
    has_model: bool

    def count(self, level: Level) -> int:
        return sum(finding.level == level for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        counts = Counter(finding.code for finding in self.findings)
        return {
            "num_errors": self.count("error"),
            "num_warnings": self.count("warning"),
            "counts": {code: counts[code] for code in LEVELS if counts[code]},
            "max_prompt_tokens": self.max_prompt_tokens,
            "files": [_file_json(file) for file in self.files],
            "findings": [
                {"code": f.code, "level": f.level, "file": f.file, "message": f.message} for f in self.findings
            ],
        }

    def table(self) -> str:
        """For people: each file, then the findings by code with the first few of each."""
        lines = [line for file in self.files for line in (*self._file_lines(file), "")]
        for code, level in LEVELS.items():
            found = [finding.message for finding in self.findings if finding.code == code]
            for i, message in enumerate(found[:NUM_EXAMPLES]):
                lines.append(
                    f"{level if not i else '':8}{code if not i else '':19}{len(found) if not i else '':>6}  {message}"
                )
            if len(found) > NUM_EXAMPLES:
                lines.append(f"{'':35}and {len(found) - NUM_EXAMPLES} more")
        total = f"{_plural(self.count('error'), 'error')}, {_plural(self.count('warning'), 'warning')}"
        return "\n".join([*lines, *([""] if self.findings else []), total])

    def _file_lines(self, file: FileReport) -> Iterator[str]:
        clips = f"{_plural(file.num_clips, 'clip')}, {file.num_distinct_clips} distinct"
        yield f"{file.path}: {_plural(file.num_rows, 'row')}, {clips}"
        if self.has_model:
            limit = f"of at most {self.max_prompt_tokens} tokens"
            yield f"  {'prompts':20}{'rows':>7}{'min':>7}{'median':>8}{'p95':>7}{'max':>7}  {limit}"
        for modality, num_rows in file.modalities.items():
            row = f"  {modality:20}{num_rows:7}"
            if modality in file.tokens:
                t = file.tokens[modality]
                row += f"{t.min:7}{t.median:8}{t.p95:7}{t.max:7}  {t.bars}".rstrip()
            yield row
        if file.answers:
            shares = (f"{letter} {share.actual:.1%} ({share.even:.1%})" for letter, share in file.answers.items())
            yield f"  answers  {'  '.join(shares)}  in brackets: if even"
        if file.blind:
            yield f"  blind    {_blind_line(file.blind)}"


def _blind_line(blind: BlindAccuracy) -> str:
    """`31.0% [28.6%, 33.5%] right by the text alone, chance is 29.9% (1350 rows with media)`"""
    low, high = blind.interval
    right = f"{blind.accuracy:.1%} [{low:.1%}, {high:.1%}] right by the text alone"
    return f"{right}, chance is {blind.chance:.1%} ({_plural(blind.num_rows, 'row')} with media)"


def _file_json(file: FileReport) -> dict[str, Any]:
    tokens = {
        modality: {
            **{name: getattr(t, name) for name in ("num_rows", "min", "median", "p95", "max")},
            "histogram": {"edges": list(t.edges), "counts": list(t.counts)},
        }
        for modality, t in file.tokens.items()
    }
    b = file.blind
    return {
        "path": file.path,
        "num_rows": file.num_rows,
        "num_clips": file.num_clips,
        "num_distinct_clips": file.num_distinct_clips,
        "modalities": dict(file.modalities),
        "tokens": tokens,
        "answers": {letter: {"share": s.actual, "even": s.even} for letter, s in file.answers.items()},
        "blind": b
        and {"num_rows": b.num_rows, "accuracy": b.accuracy, "interval": list(b.interval), "chance": b.chance},
    }


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
