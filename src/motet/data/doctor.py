"""The data doctor: finds what is wrong with row files before a run does.

    Rows --parse--> Task --decode--> clips --render--> tokens      one row at a time, as in training

Of a row, hashes, its length and what is wrong with it are kept, so memory does not grow with the media. Held-out
rows are looked at after those to train on, and held against their hashes.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
from blake3 import blake3

from motet.config.schema import DataConfig
from motet.data import media
from motet.data.blind import BlindAccuracy, Question, estimate
from motet.data.diagnosis import Diagnosis, FileReport, Finding, Lengths, Share
from motet.data.media import Media, MediaError, Video
from motet.data.reference import Reach, describe, one_line
from motet.data.rows import RowError, Rows
from motet.types import MediaPart, Prompt, Task, TextPart

MAX_BLIND_ROWS = 5000
"""Rows of a file, chosen at random, that the blind guess is measured on: enough for an interval of 3 points."""
LOOKALIKE = r"</?(?:image|img|audio|sound|speech|video)[ _-]?\d*>|<\|\w+\|>"
"""What data sets write where media belongs."""

Progress = Callable[[Path, int, int], None]
"""(file, rows done, rows in all)"""


def check(
    data: DataConfig,
    *,
    decode: Callable[..., Media] = media.load,
    renderer: Any = None,
    special_tokens: Collection[str] = (),
    max_rows: int | None = None,
    progress: Progress = lambda path, done, total: None,
) -> Diagnosis:
    """Examine `data.train` and, where it is set, `data.heldout`.

    Args:
        data: the files, what their media may reach and how videos are sampled, and the length budget.
        decode: as `media.load`; called from several threads.
        renderer: of the model, made without a length budget so that rows over it are measured too; unset, prompts
            have no lengths.
        special_tokens: of the model's tokenizer; text that spells one is named.
        max_rows: look at the first rows of each file only.

    Raises ValueError where a file is not there, not of a known kind, or empty.
    """
    literal = re.compile("|".join([*map(re.escape, special_tokens), LOOKALIKE]))
    examinations: list[_Examination] = []
    for path in (data.train, data.heldout):
        if path is not None:
            trained_on = examinations[0] if examinations else None
            examination = _Examination(Rows(path), data, decode, renderer, literal, trained_on)
            examination.run(max_rows, progress)
            examinations.append(examination)
    return Diagnosis(
        files=[examination.report() for examination in examinations],
        findings=[finding for examination in examinations for finding in examination.findings],
        max_prompt_tokens=data.max_prompt_tokens,
        has_model=renderer is not None,
    )


class _Examination:
    """One file's rows, in file order."""

    def __init__(
        self,
        rows: Rows,
        data: DataConfig,
        decode: Callable[..., Media],
        renderer: Any,
        literal: re.Pattern[str],
        trained_on: _Examination | None,
    ) -> None:
        if not len(rows):
            raise ValueError(f"{rows.path}: holds no rows")
        self.rows = rows
        self.data = data
        self.decode = decode
        self.reach = Reach.of(data, rows.base)
        self.renderer = renderer.at(rows.base) if renderer is not None else None
        self.literal = literal
        self.trained_on = trained_on
        self.findings: list[Finding] = []
        self.num_rows = self.num_clips = 0
        self.modalities: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.even_answers: defaultdict[str, float] = defaultdict(float)
        """Letter -> how many rows it would be right in, if options were in random order."""
        self.lengths: defaultdict[str, array[int]] = defaultdict(lambda: array("l"))
        self.ids: dict[bytes, str] = {}
        self.clips: dict[bytes, str] = {}
        """Hash of a clip -> the first row with it."""
        self.repeated: set[bytes] = set()
        self.asked: dict[bytes, tuple[str, str]] = {}
        """Hash of text and clips -> the first row with them, and its answer."""
        self.questions: list[Question] = []
        self.blind: BlindAccuracy | None = None

    def run(self, max_rows: int | None, progress: Progress) -> None:
        num_rows = min(len(self.rows), max_rows or len(self.rows))
        blind_rows = set(np.random.default_rng(0).permutation(num_rows)[:MAX_BLIND_ROWS].tolist())
        for index, (task, clips) in enumerate(self._decoded(num_rows)):
            progress(self.rows.path, index, num_rows)
            self.num_rows += 1
            if isinstance(task, RowError):
                self._find(task.reason, str(task))
                continue
            is_new = self._row(task, clips)
            if is_new and task.media and task.options and index in blind_rows:
                self.questions.append(Question.of(task))
        progress(self.rows.path, num_rows, num_rows)
        self.blind = estimate(self.questions)
        if self.blind and self.blind.gives_away:
            low, chance = f"{self.blind.interval[0]:.1%}", f"{self.blind.chance:.1%}"
            self._find(
                "answer_in_text",
                f"{self.rows.path.name}: a guesser that reads the text alone is right in at least {low} of the rows "
                f"with media, chance is {chance}",
            )

    def report(self) -> FileReport:
        num_answers = self.answers.total()
        return FileReport(
            path=str(self.rows.path),
            num_rows=self.num_rows,
            num_clips=self.num_clips,
            num_distinct_clips=len(self.clips),
            modalities=dict(self.modalities.most_common()),
            tokens={kind: Lengths.of(np.asarray(lengths)) for kind, lengths in self.lengths.items()},
            answers={
                letter: Share(actual=self.answers[letter] / num_answers, even=even / num_answers)
                for letter, even in sorted(self.even_answers.items())
            },
            blind=self.blind,
        )

    def _decoded(self, num_rows: int) -> Iterator[tuple[Task | RowError, Sequence[Media | MediaError]]]:
        """Each row with its clips. Some rows ahead are being decoded: as many as there are workers."""
        num_threads = max(1, self.data.decode_workers)
        threads = ThreadPoolExecutor(num_threads)
        ahead: deque[Future[tuple[Task | RowError, Sequence[Media | MediaError]]]] = deque()
        try:
            for index in range(num_rows):
                ahead.append(threads.submit(self._decode_row, index))
                if len(ahead) > num_threads:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # an interrupt does not wait for a clip

    def _decode_row(self, index: int) -> tuple[Task | RowError, Sequence[Media | MediaError]]:
        try:
            task = self.rows[index]
        except RowError as error:
            return error, ()
        return task, [self._decode(part) for part in task.media]

    def _decode(self, part: MediaPart) -> Media | MediaError:
        try:
            return self.decode(part, reach=self.reach, video=self.data.video)
        except MediaError as error:
            return error

    def _find(self, code: str, message: str) -> None:
        self.findings.append(Finding(code=code, file=str(self.rows.path), message=message))

    def _row(self, task: Task, clips: Sequence[Media | MediaError]) -> bool:
        """Whether the row is whole and asks what none before it asked."""
        self.modalities[task.modality] += 1
        if task.options:
            self.answers[task.answer] += 1
            for letter in ascii_uppercase[: len(task.options)]:
                self.even_answers[letter] += 1 / len(task.options)
        first = self.ids.setdefault(_hash(_encoded(task.id)), task.source)
        if first != task.source:
            self._find("duplicate_id", f"{task.source}: has the id {task.id!r} of {first}")
        self._literals(task)
        hashes = self._clips(task, clips)
        if len(hashes) < len(clips):
            return False
        self._lengths(task)
        return self._question(task, hashes)

    def _literals(self, task: Task) -> None:
        texts = (part.text for message in task.messages for part in message.parts if isinstance(part, TextPart))
        spelled = dict.fromkeys(token for text in texts for token in self.literal.findall(text))
        if spelled:
            self._find("literal_token", f"{task.source}: {', '.join(spelled)} stays text; media is given by reference")

    def _clips(self, task: Task, clips: Sequence[Media | MediaError]) -> list[bytes]:
        """Hashes of the row's clips, in reading order, without those that cannot be read."""
        hashes: list[bytes] = []
        for part, clip in zip(task.media, clips, strict=True):
            if isinstance(clip, MediaError):
                self._find("unreadable_media", f"{task.source}: {clip}")
                continue
            self.num_clips += 1
            hashes.append(_identity(clip))
            self._clip(task.source, describe(part.ref), hashes[-1])
        return hashes

    def _clip(self, source: str, name: str, clip: bytes) -> None:
        """Each clip is named once, however many rows it comes back in."""
        if clip not in self.clips:
            self.clips[clip] = source
            if self.trained_on and clip in self.trained_on.clips:
                self._find("shared_media", f"{source}: {name} is also in {self.trained_on.clips[clip]}")
        elif clip not in self.repeated:
            self.repeated.add(clip)
            self._find("duplicate_media", f"{source}: {name} is also in {self.clips[clip]}")

    def _question(self, task: Task, clips: Sequence[bytes]) -> bool:
        """Whether the row's text and clips are new to the file."""
        key = _hash(*_said(task, clips))
        if key in self.asked:
            first, answer = self.asked[key]
            differs = "" if answer == task.answer else f", but the answer is {task.answer!r}, not {answer!r}"
            self._find("duplicate_question", f"{task.source}: asks the same as {first}{differs}")
            return False
        self.asked[key] = task.source, task.answer
        if self.trained_on and key in self.trained_on.asked:
            code = "shared_question" if task.media else "shared_text"
            self._find(code, f"{task.source}: asks the same as {self.trained_on.asked[key][0]}")
        return True

    def _lengths(self, task: Task) -> None:
        if self.renderer is None:
            return
        rates = self.renderer.adjusted_rates.copy()
        try:
            prompt = self.renderer(task)
        except ValueError as error:  # the model's processor has limits of its own, such as the shape of an image
            message = one_line(error).removeprefix(f"{task.source}: ")
            self._find("unrenderable", f"{task.source}: {message}")
            return
        assert isinstance(prompt, Prompt), "the renderer has a length budget"
        for silent, heard in self.renderer.adjusted_rates - rates:
            self._find(
                "adjusted_rate", f"{task.source}: read at {heard:g} frames per second for its sound, not {silent:g}"
            )
        num_tokens, limit = len(prompt.token_ids), self.data.max_prompt_tokens
        self.lengths[task.modality].append(num_tokens)
        if num_tokens > limit:
            self._find(
                "too_long", f"{task.source}: {num_tokens} tokens, above data.max_prompt_tokens = {limit}: dropped"
            )


def _identity(clip: Media) -> bytes:
    """Hash of what is seen or heard. A video is the same whether or not its sound is heard, if that does not change
    which frames are seen."""
    return bytes.fromhex(clip.picture if isinstance(clip, Video) else clip.content)[:16]


def _said(task: Task, clips: Sequence[bytes]) -> Iterator[bytes]:
    """All that the model is asked by: roles, texts and clips, each marked off from the next."""
    remaining = iter(clips)
    for message in task.messages:
        yield _encoded(f"\0{message.role}")
        for part in message.parts:
            text = part.text if isinstance(part, TextPart) else f"{part.kind}{part.use_audio}{next(remaining).hex()}"
            yield _encoded(f"\0{type(part).__name__}{text}")


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON can spell half a character


def _hash(*parts: Any) -> bytes:
    hasher = blake3()
    for part in parts:
        hasher.update(part)
    return hasher.digest(length=16)
