"""A short supervised start for the tiny checkpoint, so that RL has something to sharpen.

Three stages, on toy rows drawn for the purpose (no file of a data set is read):

1. Reading and perceiving: in text alone, find an option's word among the options and name its letter; and describe
   single clips. Towers and language model learn together, or the towers are slow to start.
2. Answering: the questions themselves; say what leads to the answer, then its letter, as in "red B".
3. A bias: the language model alone learns to prefer the first option, as large models are known to (Zheng et al.,
   "Large Language Models Are Not Robust Multiple Choice Selectors", arXiv:2309.03882), until its greedy answers to
   every kind of question are right about half of the time.

So the policy answers in the right form, perceives, and has a bad habit: what RL is good at removing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from motet.batching.pack import laid_side_by_side
from motet.batching.samples import extend_positions
from motet.config.schema import DataConfig, VideoConfig
from motet.data import toy
from motet.features.store import FeatureStore
from motet.models.attention import Packed
from motet.models.qwen3_omni.names import to_released
from motet.models.qwen3_omni.render import Renderer
from motet.models.qwen3_omni.thinker import Thinker
from motet.types import MediaItem, Message, Prompt, Skip, Task

DATA = DataConfig(train="", video=VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536))
STAGES = (
    # share of the steps, rows of each sort in a batch: text, captions, questions
    (0.6, (48, 40, 0)),
    (0.4, (16, 16, 40)),
)
OPTIONS = (
    [*toy.COLOURS],
    [*toy.SHAPES],
    [*toy.COLOURS, *toy.SHAPES],
    [*toy.PITCHES],
    [*toy.DIRECTIONS],
    ["first", "second"],
    ["yes", "no"],
)
"""What stands beside what among the options of a question."""
LEARNING_RATE = 3.5e-3
SKILL = 0.5
"""The bias is strong enough when no kind of row has more of it: 0 is guessing, 1 is always right (Cohen's kappa)."""
BIAS_LEARNING_RATE = 2e-4
BIAS_STEPS = 40
"""At most."""

Features = Callable[[Sequence[MediaItem]], list[Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """A prompt, what should follow it, and which of those tokens count."""

    prompt: Prompt
    target_ids: tuple[int, ...]
    counts: tuple[bool, ...]
    kind: str = ""
    num_options: int = 0


def start(path: Path, *, seed: int, num_steps: int) -> None:
    """Train the folder's weights in place; deterministic by seed on one machine."""
    School(path, seed=seed).run(num_steps)


class School:
    def __init__(self, path: Path, *, seed: int) -> None:
        self._path = path
        self._rng = np.random.default_rng([seed, 1])
        torch.manual_seed(seed)
        self._thinker = Thinker(path)
        self._features: Features = self._with_gradient
        self._render = Renderer(path, DATA, path)
        self._tokenizer = self._render.tokenizer
        self._ids: dict[str, list[int]] = {}
        (self._end,) = self._encode("<|im_end|>")

    def run(self, num_steps: int) -> None:
        self._thinker.module.requires_grad_(True)
        captions, questions = self._pool(num_rows=1760)
        optimizers = _optimizers(self._thinker.module)
        for step in range(num_steps):
            num_text, num_captions, num_questions = _stage(step / num_steps)
            lessons = [self._text() for _ in range(num_text)]
            lessons += self._some(captions, num_captions) + self._some(questions, num_questions)
            rise, fall = (step + 1) / 20, (num_steps - step) / (0.25 * num_steps)
            self._step(lessons, optimizers, LEARNING_RATE * min(1.0, rise, fall))
        self._bias(questions)
        self._save()

    # ---- lessons -------------------------------------------------------------------------------

    def _encode(self, text: str) -> list[int]:
        if text not in self._ids:
            self._ids[text] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._ids[text]

    def _text(self) -> Lesson:
        """Options, and then every one of them (or comparisons, where they are yes and no) with its letter."""
        rng = self._rng
        choices = OPTIONS[rng.integers(len(OPTIONS))]
        compares = "yes" in choices
        options = [str(word) for word in rng.choice(choices, min(4, len(choices)), replace=False)]
        listed = toy.prompt_text("Which option says red?", tuple(options))
        ids = self._encode("<|im_start|>user\n") + self._tokenizer(listed)["input_ids"]
        ids = ids + self._encode("<|im_end|>\n<|im_start|>assistant\n")
        target: list[int] = []
        counts: list[bool] = []
        for right in rng.integers(0, 2, 4) if compares else rng.permutation(len(options)):
            space = " " * int(rng.integers(2))  # a word that opens an answer has no space before it
            given, asked = self._comparison(options[right]) if compares else ([], self._encode(space + options[right]))
            letter = self._encode(f" {toy.LETTERS[right]}")
            target += given + asked + letter
            counts += [False] * len(given) + [compares] * len(asked) + [True] * len(letter)
        places = np.tile(np.arange(len(ids), dtype=np.int32), (3, 1))
        prompt = Prompt(token_ids=np.array(ids, np.int32), positions=places, media=(), digest="")
        return Lesson(prompt, tuple(target), tuple(counts))

    def _comparison(self, verdict: str) -> tuple[list[int], list[int]]:
        """`up high` and ` yes`, say."""
        top, agree = bool(self._rng.integers(2)), verdict == "yes"
        perceived = f"{'up' if top else 'down'} {'high' if top == agree else 'low'}"
        return self._encode(perceived), self._encode(f" {verdict}")

    def _pool(self, *, num_rows: int) -> tuple[list[Lesson], list[Lesson]]:
        """Rendered captions and questions."""
        captions, questions = [], []
        kinds = [*toy.KINDS, "audio_longer", "audio_longer"]  # which no caption prepares for
        for i in range(num_rows):
            row = toy.draw(kinds[i % len(kinds)], self._rng)
            task = toy.task(row, f"warm start, row {i}")
            questions.append(self._lesson(task, row.solution, len(row.options)))
            if len(row.clips) == 1 and row.clips[0].kind != "audio":  # a lone tone is learned in no time
                message = Message(role="user", parts=task.media)
                alone = Task(id=task.id, messages=(message,), answer="", source=task.source)
                captions.append(self._lesson(alone, row.clips[0].caption, 0))
        return captions, questions

    def _lesson(self, task: Task, target: str, num_options: int) -> Lesson:
        prompt = self._render(task)
        assert not isinstance(prompt, Skip)
        ids = (*self._encode(target), self._end)
        return Lesson(prompt, ids, (True,) * len(ids), task.kind, num_options)

    def _some(self, pool: Sequence[Lesson], num: int) -> list[Lesson]:
        return [pool[i] for i in self._rng.choice(len(pool), num, replace=False)] if num else []

    # ---- learning ------------------------------------------------------------------------------

    def _step(self, lessons: Sequence[Lesson], optimizers: Sequence[torch.optim.Optimizer], rate: float) -> None:
        logits, targets = self._logits(lessons)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        self._thinker.module.zero_grad()
        cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], 1.0)
        for group in groups:
            group["lr"] = rate
        for optimizer in optimizers:
            optimizer.step()

    def _logits(self, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
        """[N, vocab] before each token that counts, and the token i64[N]."""
        given = [lesson.target_ids[:-1] for lesson in lessons]  # nothing follows the last
        lengths = [len(lesson.prompt.token_ids) + len(ids) for lesson, ids in zip(lessons, given, strict=True)]
        bounds, media = laid_side_by_side(
            [(n, lesson.prompt.media) for n, lesson in zip(lengths, lessons, strict=True)]
        )
        hidden = self._thinker.hidden(
            np.concatenate([x for ln, ids in zip(lessons, given, strict=True) for x in (ln.prompt.token_ids, ids)]),
            np.concatenate(
                [extend_positions(ln.prompt.positions, len(ids)) for ln, ids in zip(lessons, given, strict=True)], 1
            ),
            media,
            self._features(media),
            Packed(bounds.tolist()),
        )
        places, targets = [], []
        for lesson, start in zip(lessons, bounds.tolist(), strict=False):
            first = start + len(lesson.prompt.token_ids) - 1
            places += [first + i for i, counts in enumerate(lesson.counts) if counts]
            targets += [t for t, counts in zip(lesson.target_ids, lesson.counts, strict=True) if counts]
        return self._thinker.head(hidden[places]), torch.tensor(targets)

    def _with_gradient(self, media: Sequence[MediaItem]) -> list[Tensor]:
        """All clips of a batch in two calls of the towers."""
        features: dict[int, Tensor] = {}
        for encode, chosen in (
            (self._thinker.encode_visuals, [m for m in media if m.kind != "audio"]),
            (self._thinker.encode_audios, [m for m in media if m.kind == "audio"]),
        ):
            if chosen:
                features |= zip(map(id, chosen), encode(chosen), strict=True)
        return [features[id(item)] for item in media]

    # ---- bias ----------------------------------------------------------------------------------

    def _bias(self, questions: Sequence[Lesson]) -> None:
        module = self._thinker.module
        module.requires_grad_(False)
        parameters = list(self._thinker.trained().values())
        for parameter in parameters:
            parameter.requires_grad_(True)
        self._features = FeatureStore(self._thinker.encode, fingerprint="")  # the towers are done
        optimizer = torch.optim.AdamW(parameters, lr=BIAS_LEARNING_RATE)
        probe, rest = questions[:220], questions[220:660]
        for _ in range(BIAS_STEPS):
            skill = self._skill(probe)
            unbiased = [lesson for lesson in rest if skill[lesson.kind] > SKILL]
            if not unbiased:
                return
            lessons = [self._to_first(lesson) for lesson in self._some(unbiased, min(32, len(unbiased)))]
            self._step(lessons, [optimizer], BIAS_LEARNING_RATE)

    def _to_first(self, lesson: Lesson) -> Lesson:
        """The lesson with the first option's letter, of which alone it is about."""
        (first,) = self._encode(" A")
        target = (*lesson.target_ids[:-2], first, self._end)
        counts = (False,) * (len(target) - 2) + (True, False)
        return Lesson(lesson.prompt, target, counts, lesson.kind, lesson.num_options)

    @torch.no_grad()
    def _skill(self, lessons: Sequence[Lesson]) -> dict[str, float]:
        """By kind: (right - chance) / (1 - chance), of the share of lessons all of whose tokens are the likeliest."""
        logits, targets = self._logits(lessons)
        hits = (logits.argmax(-1) == targets).split([sum(lesson.counts) for lesson in lessons])
        by_kind: defaultdict[str, list[float]] = defaultdict(list)
        for lesson, hit in zip(lessons, hits, strict=True):
            chance = 1 / lesson.num_options
            by_kind[lesson.kind].append((float(hit.all()) - chance) / (1 - chance))
        return {kind: float(np.mean(values)) for kind, values in by_kind.items()}

    def _save(self) -> None:
        """Write the weights back under their released names."""
        file = self._path / "model.safetensors"
        with safe_open(file, "pt") as saved:
            metadata = saved.metadata()
        tensors = {
            released: view.contiguous()
            for name, parameter in self._thinker.module.named_parameters()
            for released, view in to_released(name, parameter.detach())
        }
        save_file(tensors, file, metadata)


def _optimizers(module: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the matrices inside the layers, which here needs half of AdamW's steps; AdamW for
    the rest. The rates agree, as Muon's updates are scaled to the size of AdamW's."""
    inner = {n: p for n, p in module.named_parameters() if p.ndim == 2 and ("layers." in n or "blocks." in n)}
    rest = [p for n, p in module.named_parameters() if n not in inner]
    return [
        torch.optim.Muon(inner.values(), momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.01),
    ]


def _stage(progress: float) -> tuple[int, int, int]:
    for share, rows in STAGES:
        if progress < share:
            return rows
        progress -= share
    return STAGES[-1][1]
