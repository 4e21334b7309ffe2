from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from motet.cli import main
from motet.data.formats.convert import Converted, convert
from motet.data.rows import RowError, Rows

FIXTURES = Path(__file__).parents[3] / "fixtures" / "formats"
AVQA = FIXTURES / "avqa_train_qa.json"


@pytest.fixture
def clip_files(made: Any) -> Path:
    """Clips for three of the four items of AVQA."""
    for name in ("-HG3Omg_89c_000030.mp4", "--0PQM4-hqg_000030.mp4"):
        made.mp4(name, num_frames=2)
    return made.folder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file()}


def test_rows_are_written_and_the_rest_is_named(clip_files: Path, tmp_path: Path) -> None:
    out = tmp_path / "train.jsonl"
    done = convert("avqa", AVQA, out, media=[clip_files])
    assert done == Converted(out=out, num_rows=3, num_heldout=0, skipped={"missing_clip": 1}, media_roots=())
    assert [task.id for task in Rows(out)] == ["183", "184", "185"]
    skipped = f"avqa_train_qa.json[3]: no file for -7uVGGJ9ZkM_000046 in {clip_files}\n"
    assert (tmp_path / "train.jsonl.skipped").read_text() == skipped
    assert str(done) == f"rows written: 3, to {out}\nitems skipped: 1 (missing_clip 1), named in {out}.skipped"
    assert names(tmp_path) == {"train.jsonl", "train.jsonl.skipped"}


def test_a_clip_that_is_there_again_is_no_longer_named(clip_files: Path, made: Any, tmp_path: Path) -> None:
    convert("avqa", AVQA, tmp_path / "train.jsonl", media=[clip_files])
    made.mp4("-7uVGGJ9ZkM_000046.mp4", num_frames=2)
    assert convert("avqa", AVQA, tmp_path / "train.jsonl", media=[clip_files]).skipped == {}
    assert names(tmp_path) == {"train.jsonl"}


def test_strict(clip_files: Path, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("as it was")
    with pytest.raises(RowError, match=r"^avqa_train_qa\.json\[3\]: no file for -7uVGGJ9ZkM_000046"):
        convert("avqa", AVQA, tmp_path / "train.jsonl", media=[clip_files], strict=True)
    assert (tmp_path / "train.jsonl").read_text() == "as it was"
    assert names(tmp_path) == {"train.jsonl"}


def test_a_damaged_clip_is_skipped_with_its_name(clip_files: Path, tmp_path: Path) -> None:
    (clip_files / "-7uVGGJ9ZkM_000046.mp4").write_bytes(b"no video")
    done = convert("avqa", AVQA, tmp_path / "train.jsonl", media=[clip_files], form="image+audio")
    assert (done.num_rows, done.skipped) == (3, {"bad_media": 1})
    line = (tmp_path / "train.jsonl.skipped").read_text()
    assert line.startswith(f"avqa_train_qa.json[3]: {clip_files}/-7uVGGJ9ZkM_000046.mp4: cannot be decoded: ")


def test_rows_that_training_would_refuse_are_skipped(tmp_path: Path) -> None:
    lines = [
        {"messages": [{"role": "user", "content": "2 + 2?"}], "answer": "4"},
        {"messages": [{"role": "user", "content": "2 + 3?"}]},
        ["no object"],
        {"messages": [{"role": "user", "content": ""}], "answer": "4"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = convert("chat", tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (done.num_rows, done.skipped) == (1, {"bad_answer": 1, "bad_json": 1, "bad_messages": 1})
    assert (tmp_path / "out.jsonl.skipped").read_text().splitlines() == [
        "in.jsonl:2: has no answer",
        "in.jsonl:3: is no object",
        "in.jsonl:4: the user's message is empty; leave it out",
    ]


@pytest.mark.parametrize(("heldout", "num_heldout"), [(1, 1), (2, 2), (0.34, 1), (0.7, 2)])
def test_heldout_rows_share_no_clip(clip_files: Path, tmp_path: Path, heldout: float, num_heldout: int) -> None:
    out, held = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    done = convert("avqa", AVQA, out, media=[clip_files], heldout=heldout, heldout_out=held)
    assert (done.num_rows, done.num_heldout) == (3 - num_heldout, num_heldout)
    # 183 and 184 are about one clip.
    assert {frozenset(task.id for task in Rows(path)) for path in (out, held)} == {
        frozenset({"185"}),
        frozenset({"183", "184"}),
    }
    assert f"rows held out: {num_heldout}, sharing" in str(done)
    assert names(tmp_path) == {"train.jsonl", "train.jsonl.skipped", "heldout.jsonl"}


def test_heldout_keeps_the_order_and_follows_the_seed(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": k, "messages": [{"role": "user", "content": f"{k} + 0?"}], "answer": k} for k in range(30)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def heldout(seed: int) -> list[int]:
        out, held = tmp_path / "out.jsonl", tmp_path / "held.jsonl"
        convert("chat", source, out, heldout=0.2, heldout_out=held, seed=seed)
        both = [[int(task.id) for task in Rows(path)] for path in (out, held)]
        assert sorted(both[0] + both[1]) == list(range(30))
        assert both == [sorted(ids) for ids in both]
        return both[1]

    assert heldout(0) == heldout(0) != heldout(1)
    assert len(heldout(0)) == 6


def test_clips_elsewhere_ask_for_media_roots(clip_files: Path, tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    out = tmp_path / "rows" / "train.jsonl"
    done = convert("avqa", AVQA, out, media=[clip_files])
    assert done.media_roots == (clip_files,)
    assert Rows(out)[0].media[0].ref == str(clip_files / "-HG3Omg_89c_000030.mp4")
    line = f'clips lie outside {tmp_path / "rows"}: set data.media_roots=["{clip_files}"]'
    assert str(done).splitlines()[-1] == line


def test_clips_are_beside_the_annotations_by_default(clip_files: Path) -> None:
    shutil.copy(AVQA, clip_files / "train_qa.json")
    convert("avqa", clip_files / "train_qa.json", clip_files / "train.jsonl")
    assert Rows(clip_files / "train.jsonl")[0].media[0].ref == "-HG3Omg_89c_000030.mp4"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"name": "vqa"}, "unknown format 'vqa'; use avqa, audiomcq, chat, llava"),
        ({"form": "text"}, "--form text: no form of avqa; avqa has video, image+audio, audio, the others have one"),
        ({"name": "chat", "form": "video"}, "--form video: no form of chat; avqa has"),
        ({"source": "no.json"}, "no.json: no such file; give the annotations"),
        ({"media": [Path("nowhere")]}, f"{AVQA}: gives no row: avqa_train_qa.json[0]: no file for -HG3Omg_89c_000030"),
        ({"source": "empty.json"}, "empty.json: gives no row: it holds no items"),
        ({"out": "no/out.jsonl"}, "no/out.jsonl: there is no folder no; make it first"),
        ({"source": "empty.json", "out": "empty.json"}, "empty.json: would overwrite another file"),
        ({"heldout": 0.5}, "--heldout and --heldout-out go together"),
        ({"heldout_out": "h.jsonl"}, "--heldout and --heldout-out go together"),
        ({"heldout": 0, "heldout_out": "h.jsonl"}, "--heldout 0: give a share below 1, or a whole number of rows"),
        ({"heldout": 1.5, "heldout_out": "h.jsonl"}, "--heldout 1.5: give a share below 1"),
        ({"heldout": 1, "heldout_out": "clips/h.jsonl"}, "--heldout-out clips/h.jsonl: must lie beside out.jsonl"),
        ({"heldout": 1, "heldout_out": "out.jsonl"}, "out.jsonl: would overwrite another file"),
        ({"heldout": 3, "heldout_out": "h.jsonl"}, f"{AVQA}: of 3 rows, 3 cannot be held out"),
        ({"heldout": 0.1, "heldout_out": "h.jsonl"}, f"{AVQA}: of 3 rows, 0 cannot be held out"),
    ],
)
def test_mistakes(
    clip_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.json").write_text("[]")
    call = {"name": "avqa", "source": AVQA, "out": "out.jsonl", "media": [clip_files]} | options
    paths = {key: Path(call.pop(key)) for key in ("source", "out", "heldout_out") if key in call}
    with pytest.raises(ValueError) as caught:
        convert(call.pop("name"), paths.pop("source"), paths.pop("out"), **call, **paths)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
    assert names(tmp_path) == {"empty.json"}


@pytest.mark.parametrize(
    ("name", "file", "files", "num_rows"),
    [
        ("audiomcq", "audiomcq.jsonl", ["AudioCaps/sample_7.wav", "MusicCaps/sample_8.wav"], 2),
        ("audiomcq", "r1_aqa.json", ["-HG3Omg_89c_30.wav"], 1),
        ("chat", "chat.jsonl", ["x.png", "x.mp4", "x.wav"], 5),
        ("llava", "llava.json", ["part-000001/997bb945.png", "b.png"], 3),
        ("llava", "llava_video.json", ["academic_source/x.mp4"], 1),
    ],
)
def test_every_fixture_gives_all_its_rows(
    made: Any, tmp_path: Path, name: str, file: str, files: list[str], num_rows: int
) -> None:
    for clip in files:
        (made.mp4 if clip.endswith("mp4") else made.wav if clip.endswith("wav") else made.png)(clip)
    done = convert(name, FIXTURES / file, tmp_path / "out.jsonl", media=[made.folder], strict=True)
    assert (done.num_rows, len(Rows(tmp_path / "out.jsonl"))) == (num_rows, num_rows)


def test_the_command(clip_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, held = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl"
    words = ["data", "convert", "avqa", str(AVQA), str(out), "--media", str(clip_files), "--form", "audio"]
    assert main([*words, "--heldout", "1", "--heldout-out", str(held), "--seed", "3"]) == 0
    assert capsys.readouterr().out.startswith(f"rows written: 2, to {out}\nrows held out: 1,")
    assert {task.modality for path in (out, held) for task in Rows(path)} == {"audio"}
    assert main([*words, "--strict"]) == 2
    assert capsys.readouterr().err.startswith("motet: error: avqa_train_qa.json[3]: no file for -7uVGGJ9ZkM_000046")
