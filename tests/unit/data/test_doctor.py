"""Real files with one fault each: the doctor finds that fault, at that row, and nothing else."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from motet.config.schema import DataConfig, VideoConfig
from motet.data import doctor, media
from motet.data.blind import BlindAccuracy
from motet.data.diagnosis import LEVELS, Diagnosis, FileReport, Finding, Lengths, Share
from motet.data.rows import Rows
from motet.models.qwen3_omni.render import Renderer
from motet.types import MediaPart

VIDEO = VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536)


def picture(path: Path, seed: int, size: tuple[int, int] = (64, 64)) -> str:
    pixels = np.random.default_rng(seed).integers(256, size=(*size, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(path)
    return path.name


def sound(path: Path, seed: int) -> str:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.random.default_rng(seed).integers(-999, 999, 8000, dtype=np.int16).tobytes())
    return path.name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i in range(4):
        picture(tmp_path / f"{i}.png", i)
        sound(tmp_path / f"{i}.wav", i)
    return tmp_path


def row(question: str = "Which one?", answer: str = "red", **keys: Any) -> dict[str, Any]:
    return {"question": question, "options": ["red", "blue"], "answer": answer} | keys


SOUND_ROWS = [
    row("<image>Which colour?", images=["0.png"], id="first"),
    row("<image><audio>Which colour?", "blue", images=["1.png"], audios=["0.wav"]),
    row("Which one is a colour of the sky?", "B"),
]


def write(path: Path, rows: list[Any]) -> str:
    """Rows that are text already are written as they are."""
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return str(path)


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in diagnosis.findings]


def check(folder: Path, rows: list[Any], heldout: list[Any] | None = None, **options: Any) -> Diagnosis:
    train = write(folder / "train.jsonl", rows)
    rest = None if heldout is None else write(folder / "heldout.jsonl", heldout)
    return doctor.check(DataConfig(train=train, heldout=rest, video=VIDEO), **options)


# ---- one file ----------------------------------------------------------------------------------


def test_rows_without_fault_are_found_to_be_so(folder: Path) -> None:
    diagnosis = check(folder, SOUND_ROWS)
    assert diagnosis.findings == []
    (file,) = diagnosis.files
    assert file == FileReport(
        path=str(folder / "train.jsonl"),
        num_rows=3,
        num_clips=3,
        num_distinct_clips=3,
        modalities={"image": 1, "image+audio": 1, "text": 1},
        tokens={},
        answers={"A": Share(actual=1 / 3, even=0.5), "B": Share(actual=2 / 3, even=0.5)},
        blind=BlindAccuracy(num_rows=2, num_right=file.blind.num_right if file.blind else -1, chance=0.5),
    )


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("{'id': 1}", "bad_json", "not valid JSON: Expecting property name enclosed in double quotes at column 2"),
        ("3", "bad_json", "a row must be an object, not 3"),
        ({"answer": "red"}, "bad_messages", "needs messages, or prompt or question as text"),
        (
            row("<image>?", images=["0.png", "1.png"]),
            "bad_media",
            "2 images but 1 <image> placeholder; give one placeholder per image, in reading order",
        ),
        (row(options="red"), "bad_options", "options must be a list of texts, not 'red'"),
        (row(answer="green"), "bad_answer", "answer 'green' is not among the options ['red', 'blue']"),
        (
            row("What is <image>?"),
            "literal_token",
            "<image> stays text; media is given by reference",
        ),
        (
            row("<video><|vision_start|> <|im_end|>?", videos=None),
            "literal_token",
            "<video>, <|vision_start|>, <|im_end|> stays text; media is given by reference",
        ),
        (row("And this one?", id="first"), "duplicate_id", "has the id 'first' of train.jsonl:1"),
        (row("<audio>Which?", audios=["0.wav"]), "duplicate_media", "0.wav is also in train.jsonl:2"),
        (SOUND_ROWS[2] | {"kind": "other"}, "duplicate_question", "asks the same as train.jsonl:3"),
        (
            SOUND_ROWS[2] | {"answer": "A"},
            "duplicate_question",
            "asks the same as train.jsonl:3, but the answer is 'A', not 'B'",
        ),
    ],
)
def test_a_fault_is_found_at_its_row(folder: Path, fault: Any, code: str, message: str) -> None:
    diagnosis = check(folder, [*SOUND_ROWS, fault])
    assert found(diagnosis) == [(code, f"train.jsonl:4: {message}")]
    assert diagnosis.findings[0].file == str(folder / "train.jsonl")


def test_media_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "cut.png").write_bytes((folder / "2.png").read_bytes()[:100])
    (folder / "note.wav").write_text("no sound at all")
    refs = ["none.png", "cut.png", "/etc/hostname", "2.png"]
    diagnosis = check(
        folder,
        [row("<image>" * 4, images=refs), row("<audio>?", audios=["note.wav"]), row("<audio>?", audios=["3.wav"])],
    )
    assert [code for code, _ in found(diagnosis)] == ["unreadable_media"] * 4
    starts = [
        "train.jsonl:1: none.png: ",
        "train.jsonl:1: cut.png: ",
        "train.jsonl:1: /etc/hostname: lies outside data.media_roots",
        "train.jsonl:2: note.wav: ",
    ]
    assert all(message.startswith(start) for (_, message), start in zip(found(diagnosis), starts, strict=True))
    assert diagnosis.files[0].num_clips == 2  # the good image of the first row, and the last row's sound


def test_the_same_picture_under_another_name_is_a_duplicate(folder: Path) -> None:
    PIL.Image.open(folder / "0.png").save(folder / "copy.bmp")
    rows = [row(f"<image>{i}?", images=[name]) for i, name in enumerate(("0.png", "copy.bmp", "0.png", "1.png"))]
    diagnosis = check(folder, rows)
    assert found(diagnosis) == [("duplicate_media", "train.jsonl:2: copy.bmp is also in train.jsonl:1")]
    assert (diagnosis.files[0].num_clips, diagnosis.files[0].num_distinct_clips) == (4, 2)


def test_half_a_character_is_no_trouble(folder: Path) -> None:
    assert check(folder, [row("\ud800?", id="\ud800"), row("?", id="2")]).findings == []


def test_the_first_rows_alone(folder: Path) -> None:
    diagnosis = check(folder, [*SOUND_ROWS, "{"], max_rows=3)
    assert (diagnosis.findings, diagnosis.files[0].num_rows) == ([], 3)
    assert len(check(folder, [*SOUND_ROWS, "{"], max_rows=4).findings) == 1


def test_a_file_without_rows_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.jsonl: holds no rows$"):
        check(folder, [])


def test_progress_is_told(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    check(folder, SOUND_ROWS, progress=lambda path, done, total: told.append((path.name, done, total)))
    assert told == [("train.jsonl", done, 3) for done in range(4)]


def test_few_rows_are_decoded_ahead(folder: Path) -> None:
    """With two workers, two rows beside the one at hand: clips in memory do not grow with the file."""
    decoded: list[str] = []
    ahead: list[int] = []

    def decode(part: MediaPart, **options: Any) -> media.Media:
        decoded.append(part.ref)
        return media.load(part, **options)

    path = write(folder / "train.jsonl", [row(f"<image>{i}?", images=["0.png"]) for i in range(20)])
    doctor.check(
        DataConfig(train=path, decode_workers=2),
        decode=decode,
        progress=lambda path, done, total: ahead.append(len(decoded) - done),
    )
    assert len(decoded) == 20
    assert max(ahead) <= 3


# ---- two files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heldout", "expected"),
    [
        (row("<image>Which colour?", images=["2.png"]), []),  # the words of a row to train on, about other media
        (row("<image>Another?", images=["0.png"]), [("shared_media", "0.png is also in train.jsonl:1")]),
        (
            row("<image>Which colour?", "blue", images=["0.png"]),
            [("shared_media", "0.png is also in train.jsonl:1"), ("shared_question", "asks the same as train.jsonl:1")],
        ),
        (SOUND_ROWS[2], [("shared_text", "asks the same as train.jsonl:3")]),
        (SOUND_ROWS[2] | {"options": ["sky", "blue"]}, []),
    ],
)
def test_what_is_held_out_is_not_trained_on(
    folder: Path, heldout: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    diagnosis = check(folder, SOUND_ROWS, [heldout])
    assert found(diagnosis) == [(code, f"heldout.jsonl:1: {message}") for code, message in expected]
    assert {finding.file for finding in diagnosis.findings} <= {str(folder / "heldout.jsonl")}


def test_a_video_is_the_same_heard_or_not(toy_folder: Path, tmp_path: Path) -> None:
    (task,) = [task for task in Rows(toy_folder / "train.jsonl") if task.kind == "video_agree"][:1]
    clip = str(toy_folder / task.media[0].ref)
    train, heldout = (
        write(tmp_path / f"{name}.jsonl", [row("<video>?", videos=[clip], use_audio_in_video=heard)])
        for name, heard in (("train", True), ("heldout", False))
    )
    data = DataConfig(train=train, heldout=heldout, media_roots=(str(toy_folder),), video=VIDEO)
    assert [code for code, _ in found(doctor.check(data))] == ["shared_media"]


def test_relative_paths_start_at_each_file(folder: Path) -> None:
    (folder / "other").mkdir()
    picture(folder / "other" / "0.png", 7)
    rows = [row("<image>?", images=["0.png"])]
    train, heldout = write(folder / "rows.jsonl", rows), write(folder / "other" / "rows.jsonl", rows)
    assert doctor.check(DataConfig(train=train, heldout=heldout)).findings == []


def test_parquet_with_media_inside(folder: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    cells = [{"bytes": (folder / name).read_bytes(), "path": None} for name in ("0.png", "1.png", "0.png")]
    rows = [row(f"<image>{i}?", images=[cell]) for i, cell in enumerate(cells)]
    pq.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")
    diagnosis = doctor.check(DataConfig(train=str(folder / "rows.parquet")))
    size = len(cells[0]["bytes"] or b"")
    assert found(diagnosis) == [("duplicate_media", f"rows.parquet:3: <bytes, {size}> is also in rows.parquet:1")]


# ---- with a model ------------------------------------------------------------------------------


def test_lengths_by_modality(folder: Path, renderer: Renderer) -> None:
    diagnosis = check(folder, [*SOUND_ROWS, row("<image>Which?", images=["2.png"])], renderer=renderer)
    assert diagnosis.findings == []
    tokens = diagnosis.files[0].tokens
    rendered = {task.source: len(renderer.at(folder)(task).token_ids) for task in Rows(folder / "train.jsonl")}  # type: ignore[union-attr]
    one, other = sorted((rendered["train.jsonl:1"], rendered["train.jsonl:4"]))
    assert {kind: (t.num_rows, t.min, t.max) for kind, t in tokens.items()} == {
        "image": (2, one, other),
        "image+audio": (1, rendered["train.jsonl:2"], rendered["train.jsonl:2"]),
        "text": (1, rendered["train.jsonl:3"], rendered["train.jsonl:3"]),
    }


def test_rows_that_the_budget_drops(folder: Path, renderer: Renderer) -> None:
    path = write(folder / "train.jsonl", SOUND_ROWS)
    longest = max(len(renderer.at(folder)(task).token_ids) for task in Rows(path))  # type: ignore[union-attr]
    fits, drops = (
        doctor.check(DataConfig(train=path, max_prompt_tokens=limit, video=VIDEO), renderer=renderer)
        for limit in (longest, longest - 1)
    )
    assert fits.findings == []
    assert found(drops) == [
        ("too_long", f"train.jsonl:2: {longest} tokens, above data.max_prompt_tokens = {longest - 1}: dropped")
    ]
    assert drops.files[0].tokens["image+audio"].max == longest


@pytest.mark.parametrize(("fps", "num_found"), [(2, 0), (3, 1)])
def test_a_rate_that_the_sound_changes(
    toy_folder: Path, random_checkpoint: Path, tmp_path: Path, fps: int, num_found: int
) -> None:
    clips = {task.kind: str(toy_folder / task.media[0].ref) for task in Rows(toy_folder / "train.jsonl") if task.media}
    rows = [
        row("<video>?", videos=[clips["video_motion"]]),
        row("<video>?", videos=[clips["video_agree"]], use_audio_in_video=True),
    ]
    path = write(tmp_path / "train.jsonl", rows)
    video = VIDEO.model_copy(update={"fps": fps})
    data = DataConfig(train=path, media_roots=(str(toy_folder),), video=video)
    diagnosis = doctor.check(data, renderer=Renderer(random_checkpoint, data, tmp_path))
    line = "train.jsonl:2: read at 2 frames per second for its sound, not 3"
    assert found(diagnosis) == [("adjusted_rate", line)] * num_found


def test_what_the_processor_refuses(folder: Path, renderer: Renderer) -> None:
    picture(folder / "thin.png", 0, (1, 500))
    diagnosis = check(folder, [*SOUND_ROWS, row("<image>?", images=["thin.png"])], renderer=renderer)
    ((code, message),) = found(diagnosis)
    assert code == "unrenderable"
    assert message.startswith("train.jsonl:4: ")
    assert "aspect ratio" in message


def test_special_tokens_of_the_model(folder: Path) -> None:
    rows = [row("Say <think>?"), row("Say <other>?")]
    assert check(folder, rows).findings == []
    diagnosis = check(folder, rows, special_tokens=["<think>", "</think>"])
    assert found(diagnosis) == [("literal_token", "train.jsonl:1: <think> stays text; media is given by reference")]


# ---- what the text gives away ------------------------------------------------------------------


def leaky(num_rows: int, is_leaky: bool) -> list[dict[str, Any]]:
    """The right option is the longest, or any."""
    rng = np.random.default_rng(0)
    words = ["a cat", "a small dog by a door", "one more thing", "rain"]
    rows = []
    for i in range(num_rows):
        options = rng.permutation(words).tolist()
        answer = max(options, key=len) if is_leaky else str(rng.choice(options))
        rows.append(row(f"<image>{i}?", answer, images=["0.png"], options=options))
    return rows


@pytest.mark.parametrize("is_leaky", [True, False])
def test_an_answer_in_the_text_is_a_warning(folder: Path, is_leaky: bool) -> None:
    diagnosis = check(folder, leaky(200, is_leaky))
    findings = dict(found(diagnosis))
    blind = diagnosis.files[0].blind
    assert blind is not None
    assert (blind.num_rows, blind.chance) == (200, 0.25)
    if is_leaky:
        assert blind.num_right == 200
        assert findings.pop("answer_in_text") == (
            "train.jsonl: a guesser that reads the text alone is right in at least 98.1% of the rows with media, "
            "chance is 25.0%"
        )
    assert findings == {"duplicate_media": "train.jsonl:2: 0.png is also in train.jsonl:1"}


def test_text_rows_and_open_questions_are_not_guessed(folder: Path) -> None:
    open_question = {"question": "<image>How many?", "images": ["0.png"], "answer": 3}
    assert check(folder, [open_question, row("Which?")]).files[0].blind is None


def test_a_row_that_comes_again_is_guessed_once(folder: Path) -> None:
    again = row("<image>?", images=["0.png"])
    blind = check(folder, [again, again, row("<image>?", images=["1.png"])]).files[0].blind
    assert blind is not None
    assert blind.num_rows == 2


def test_the_toy_set_is_clean(toy_folder: Path, renderer: Renderer) -> None:
    data = DataConfig(train=str(toy_folder / "train.jsonl"), heldout=str(toy_folder / "heldout.jsonl"), video=VIDEO)
    diagnosis = doctor.check(data, renderer=renderer, special_tokens=renderer.tokenizer.get_added_vocab())
    assert diagnosis.findings == []
    train, heldout = diagnosis.files
    assert (train.num_rows, heldout.num_rows) == (45, 18)
    assert train.num_clips == train.num_distinct_clips
    assert (
        train.tokens.keys()
        == train.modalities.keys()
        == {"text", "image", "audio", "video", "video+audio", "image+audio"}
    )
    assert train.blind is not None
    assert (train.blind.num_rows, train.blind.gives_away) == (40, False)
    assert train.blind.interval[0] < train.blind.chance < train.blind.interval[1]


# ---- how it is told ----------------------------------------------------------------------------


def test_every_code_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    assert [code for code in LEVELS if f"`{code}`" not in page] == []


def test_lengths_by_hand() -> None:
    lengths = Lengths.of(np.array([1, 10, 2, 3]))
    assert lengths == Lengths(
        num_rows=4,
        min=1,
        median=2,
        p95=10,
        max=10,
        edges=pytest.approx(tuple(1 + 0.9 * k for k in range(11))),
        counts=(1, 1, 1, 0, 0, 0, 0, 0, 0, 1),
    )
    assert lengths.bars == "███      █"


@pytest.mark.parametrize(("num_short", "p95"), [(95, 1), (94, 9)])
def test_p95_is_a_length_that_95_percent_do_not_exceed(num_short: int, p95: int) -> None:
    assert Lengths.of(np.array([1] * num_short + [9] * (100 - num_short))).p95 == p95


def test_the_bars_of_bins() -> None:
    values = [0] * 8 + [1] * 4 + [2] + [9] * 16
    assert Lengths.of(np.array(values)).bars == "▄▂▁      █"


@pytest.fixture
def diagnosis() -> Diagnosis:
    file = FileReport(
        path="train.jsonl",
        num_rows=9,
        num_clips=4,
        num_distinct_clips=1,
        modalities={"image": 4, "text": 1},
        tokens={"image": Lengths.of(np.array([5, 5, 5, 14]))},
        answers={"A": Share(actual=0.8, even=0.5), "B": Share(actual=0.2, even=0.5)},
        blind=BlindAccuracy(num_rows=4, num_right=3, chance=0.5),
    )
    findings = [Finding(code="duplicate_id", file="train.jsonl", message="train.jsonl:2: twice")]
    findings += [Finding(code="bad_json", file="train.jsonl", message=f"train.jsonl:{i}: bad") for i in range(3, 7)]
    return Diagnosis(files=[file], findings=findings, max_prompt_tokens=100, has_model=True)


def test_the_table(diagnosis: Diagnosis) -> None:
    assert diagnosis.table().splitlines() == [
        "train.jsonl: 9 rows, 4 clips, 1 distinct",
        "  prompts                rows    min  median    p95    max  of at most 100 tokens",
        "  image                     4      5       5     14     14  █        ▃",
        "  text                      1",
        "  answers  A 80.0% (50.0%)  B 20.0% (50.0%)  in brackets: if even",
        "  blind    75.0% [30.1%, 95.4%] right by the text alone, chance is 50.0% (4 rows with media)",
        "",
        "error   bad_json                4  train.jsonl:3: bad",
        "                                   train.jsonl:4: bad",
        "                                   train.jsonl:5: bad",
        "                                   and 1 more",
        "warning duplicate_id            1  train.jsonl:2: twice",
        "",
        "4 errors, 1 warning",
    ]


def test_the_json_holds_everything(diagnosis: Diagnosis) -> None:
    told = json.loads(json.dumps(diagnosis.to_json()))
    assert told["files"] == [
        {
            "path": "train.jsonl",
            "num_rows": 9,
            "num_clips": 4,
            "num_distinct_clips": 1,
            "modalities": {"image": 4, "text": 1},
            "tokens": {
                "image": {
                    "num_rows": 4,
                    "min": 5,
                    "median": 5,
                    "p95": 14,
                    "max": 14,
                    "histogram": {
                        "edges": pytest.approx([5 + 0.9 * k for k in range(11)]),
                        "counts": [3, 0, 0, 0, 0, 0, 0, 0, 0, 1],
                    },
                }
            },
            "answers": {"A": {"share": 0.8, "even": 0.5}, "B": {"share": 0.2, "even": 0.5}},
            "blind": {
                "num_rows": 4,
                "accuracy": 0.75,
                "interval": pytest.approx([0.3006, 0.9544], abs=1e-4),
                "chance": 0.5,
            },
        }
    ]
    assert told["findings"][0] == {
        "code": "duplicate_id",
        "level": "warning",
        "file": "train.jsonl",
        "message": "train.jsonl:2: twice",
    }
    assert len(told.pop("findings")) == 5
    del told["files"]
    assert told == {
        "num_errors": 4,
        "num_warnings": 1,
        "counts": {"bad_json": 4, "duplicate_id": 1},
        "max_prompt_tokens": 100,
    }
