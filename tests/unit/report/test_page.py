from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from motet.config.load import dump, load
from motet.data import toy
from motet.metrics.log import MetricsLog
from motet.report import groups, page

BEFORE = {
    "accuracy": 0.462,
    "num_rows": 450,
    "interval": [0.416, 0.509],
    "by_kind": {"image_colour": {"accuracy": 0.4, "num_rows": 50}, "text": {"accuracy": 0.9, "num_rows": 50}},
    "by_modality": {"image": {"accuracy": 0.4, "num_rows": 50}},
}
AFTER = {
    "accuracy": 0.88,
    "num_rows": 450,
    "interval": [0.847, 0.907],
    "by_kind": {"image_colour": {"accuracy": 0.95, "num_rows": 50}, "text": {"accuracy": 0.8, "num_rows": 50}},
    "by_modality": {"image": {"accuracy": 0.95, "num_rows": 50}},
}


class Page(HTMLParser):
    """The elements of a page in order, each with its attributes and the text directly in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: Sequence[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, {name: value or "" for name, value in attributes}, text))
        if tag not in ("meta", "link", "img"):
            self._open.append((tag, text))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if self._open:
            self._open[-1][1].append(data)

    def texts(self, tag: str, kind: str | None = None) -> list[str]:
        return ["".join(text) for name, a, text in self.elements if name == tag and kind in (None, a.get("class"))]

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] for other, attributes, _ in self.elements if other == tag]

    def everything(self) -> str:
        return " ".join("".join(text) for _, _, text in self.elements)


def words(html: str) -> str:
    """What a reader sees."""
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def verdict(run: Path) -> str:
    (found,) = re.findall(r'<div class="verdict">.*?</div>', page.write(run).read_text())
    return words(found)


def written(run: Path) -> Page:
    path = page.write(run)
    assert path == run / "report.html"
    return Page(path.read_text())


def completion(text: str, score: float, **more: Any) -> dict[str, Any]:
    return {"text": text, "score": score, "parts": {}, "stop": "eos", "num_tokens": 2, **more}


def record(run: Path, number: int = 0, **more: Any) -> None:
    (run / "groups").mkdir(exist_ok=True)
    group = {
        "step": 3,
        "group": 0,
        "task": "train-1",
        "kind": "image_colour",
        "modality": "image",
        "source": "train.jsonl:2",
        "options": ["red", "blue"],
        "answer": "B",
        "messages": [{"role": "user", "parts": [{"kind": "text", "text": "What colour?\nA. red\nB. blue"}]}],
        "completions": [completion("B", 1.0)],
    }
    (run / f"groups/{number:03}.json").write_text(json.dumps({**group, **more}))


def clips(*parts: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": "user", "parts": [{"kind": kind, "file": file} for kind, file in parts]}]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of four steps."""
    folder = tmp_path / "first"
    settings = ["run_dir=first", "steps=4", "model.path=work/tiny", "data.train=train.jsonl", "algorithm.kind=rloo"]
    with MetricsLog(folder, num_steps=4, tensorboard=False) as log:
        log.log(0, {"eval/accuracy": 0.462, "eval/accuracy_low": 0.416, "eval/accuracy_high": 0.509})
        for step in range(1, 5):
            log.log(step, {"reward/mean": step / 10, "entropy": 1.0, "seconds/rollout": 2.0, "ratio": 1.0})
        log.alarm("entropy is collapsing")
    (folder / "config.toml").write_text(dump(load(None, settings)))
    summary = {"eval_before": BEFORE, "eval_after": AFTER, "train_seconds": 187.4, "num_steps": 4, "config": {}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


# ---- the run -----------------------------------------------------------------------------------


def test_the_head_tells_how_it_went(run: Path) -> None:
    assert verdict(run) == (
        "held-out accuracy 46.2% 95% interval 41.6 to 50.9% → 88.0% 95% interval 84.7 to 90.7% +41.8 points"
    )
    found = written(run)
    assert found.texts("title")[0] == "first · Motet"
    assert found.texts("span")[0] == "· 4 of 4 steps"
    facts = dict(zip(found.texts("dt"), found.texts("dd"), strict=True))
    assert facts["training time"] == "3 min 7 s"
    assert facts["held-out rows"] == "450"
    assert (facts["algorithm"], facts["model"], facts["max lag"]) == ("rloo", "work/tiny", "0")


def test_alarms_are_shown_with_their_step(run: Path) -> None:
    assert "<li><b>step 4</b>entropy is collapsing</li>" in page.write(run).read_text()


def test_accuracy_by_kind_and_modality_before_and_after(run: Path) -> None:
    cells = re.findall(r"<tr>(.*?)</tr>", page.write(run).read_text())
    assert [words(cell) for cell in cells] == [
        "kind rows before after points over the run",
        "image_colour 50 40.0% 95.0% +55.0",
        "text 50 90.0% 80.0% -10.0",
        "modality rows before after points over the run",
        "image 50 40.0% 95.0% +55.0",
    ]


def test_curves_are_drawn_of_what_was_logged(run: Path) -> None:
    found = written(run)
    captions = re.findall(r"<figcaption><b>([^<]*)</b>", page.write(run).read_text())
    assert captions == ["Held-out accuracy", "Reward", "Entropy (nats per token)", "Seconds per stage", "ratio"]
    assert "step 4: mean 0.4" in found.texts("title")


def test_the_settings_are_there_in_full(run: Path) -> None:
    assert written(run).texts("pre", "config") == [(run / "config.toml").read_text()]


def test_the_page_asks_the_network_for_nothing(run: Path) -> None:
    record(run)
    found = written(run)
    assert {tag for tag, _, _ in found.elements} & {"script", "iframe", "object", "base"} == set()
    assert found.attributes("link", "href") == ["data:,"]
    assert not re.search(r"https?://|url\(|@import", (run / "report.html").read_text())


def test_a_run_in_progress_compares_its_first_and_last_evaluation(run: Path) -> None:
    (run / "summary.json").unlink()
    with MetricsLog(run, num_steps=4, tensorboard=False) as log:
        for step, accuracy in enumerate((0.4, 0.7, 0.5)):
            log.log(step, {"eval/accuracy": accuracy, "eval/kind/text": accuracy, "eval/modality/text": accuracy})
    html = page.write(run).read_text()
    assert verdict(run) == "held-out accuracy so far 40.0% → 50.0% +10.0 points"
    assert "2 of 4 steps, not finished" in html
    assert "<td>text</td><td>–</td><td>40.0%</td><td>50.0%</td>" in html
    assert 'points="4.0,16.4 60.0,9.2 116.0,14.0"' in html  # 26 - 24 * accuracy


def test_one_evaluation_is_no_change(run: Path) -> None:
    (run / "summary.json").unlink()
    assert verdict(run) == "held-out accuracy so far 46.2% 95% interval 41.6 to 50.9%"


def test_a_line_that_is_being_written_is_left_for_later(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    assert "· 4 of 4 steps" in written(run).everything()


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    text = written(tmp_path).everything()
    assert "not measured" in text
    assert "Nothing has been logged yet." in text
    assert "No group has been recorded." in text


def test_a_run_without_held_out_rows(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps({"eval_before": None, "eval_after": None, "train_seconds": 4000}))
    (run / "metrics.jsonl").write_text('{"step": 4, "unix_seconds": 0, "entropy": 1.0}\n')
    text = written(run).everything()
    assert "not measured" in text
    assert "1 h 6 min" in text


def test_settings_come_from_the_summary_where_there_is_no_config_file(run: Path) -> None:
    (run / "config.toml").unlink()
    (run / "summary.json").write_text(json.dumps({"config": {"seed": 7, "algorithm": {"kind": "gspo"}}}))
    found = written(run)
    assert found.texts("dd") == ["gspo", "7"]
    assert '"kind": "gspo"' in found.texts("pre", "config")[0]


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_is_not_there_is_the_users_mistake(tmp_path: Path, is_file: bool) -> None:
    path = tmp_path / "runs"
    if is_file:
        path.touch()
    with pytest.raises(ValueError) as caught:
        page.write(path)
    assert str(caught.value) == f"{path}: no such folder; give the folder of a run, its run_dir"


# ---- the groups --------------------------------------------------------------------------------


def test_media_is_inside_the_page(run: Path, tmp_path: Path) -> None:
    toy.write(tmp_path / "toy", num_train=9, num_heldout=0)
    (run / "groups").mkdir()
    files = {}
    for kind, suffix in (("image", "png"), ("audio", "wav"), ("video", "mp4")):
        files[kind] = min((tmp_path / "toy/media").glob(f"*.{suffix}")).read_bytes()
        (run / f"groups/000.{suffix}").write_bytes(files[kind])
    record(run, messages=clips(("image", "000.png"), ("audio", "000.wav"), ("video", "000.mp4")))
    found = written(run)
    for tag, kind, mime in (("img", "image", "png"), ("audio", "audio", "wav"), ("video", "video", "mp4")):
        (source,) = found.attributes(tag, "src")
        head, data = source.split(",")
        assert head == f"data:{kind}/{mime};base64"
        assert b64decode(data) == files[kind]
    assert [("controls" in a) for tag, a, _ in found.elements if tag in ("audio", "video")] == [True, True]


def test_the_question_its_options_and_the_right_one(run: Path) -> None:
    record(run)
    found = written(run)
    assert found.texts("p") == ["What colour?"]  # the list of options is shown once
    assert re.findall(r'<li class="(right)?"><b>(.)</b> (\w+)</li>', (run / "report.html").read_text()) == [
        ("", "A", "red"),
        ("right", "B", "blue"),
    ]
    assert found.texts("footer") == ["train-1 · train.jsonl:2"]


def test_an_open_question_shows_its_answer(run: Path) -> None:
    messages = [
        {"role": "system", "parts": [{"kind": "text", "text": "Be brief."}]},
        {"role": "user", "parts": [{"kind": "text", "text": "6 x 7?"}]},
    ]
    record(run, options=[], answer="42", messages=messages)
    found = written(run)
    assert found.texts("mark") == ["42"]
    assert found.texts("p") == ["Be brief.", "6 x 7?", "right answer: "]
    assert found.texts("small")[-3:-1] == ["system", "user"]


def test_identical_completions_are_folded_and_the_best_comes_first(run: Path) -> None:
    completions = [
        *[completion("A", 0.0, advantage=-0.5)] * 2,
        completion("", 0.5, parts={"accuracy": 0.0, "format": 0.5}),
        *[completion("B", 1.0, advantage=1.25)] * 5,
        completion("A", 0.0, stop="length", num_tokens=8),
    ]
    record(run, completions=completions)
    (listed,) = re.findall("<ol>(.*?)</ol>", page.write(run).read_text())
    assert [words(item) for item in re.findall("<li>(.*?)</li>", listed)] == [
        "1 ×5 B 2 tokens · advantage +1.25",
        "0.5 nothing 2 tokens · accuracy 0 · format 0.5",
        "0 ×2 A 2 tokens · advantage -0.50",
        "0 A 8 tokens · cut at the limit",
    ]
    assert re.findall('<output class="([a-z]*)"', listed) == ["good", "fair", "poor", "poor"]
    assert "mean score 0.611" in page.write(run).read_text()


@pytest.mark.parametrize(("low", "grade"), [(-1.0, "poor"), (0.0, "poor"), (0.25, "poor"), (0.26, "fair")])
def test_grades_go_by_the_range_of_the_scores(run: Path, low: float, grade: str) -> None:
    record(run, completions=[completion("x", 1.0), completion("y", low)])
    assert re.findall('<output class="([a-z]*)"', page.write(run).read_text())[-2:] == ["good", grade]


@pytest.mark.parametrize("field", ["completion", "question", "option", "answer", "kind", "task", "source", "role"])
def test_what_others_wrote_is_text(run: Path, field: str) -> None:
    evil = "</pre><script>alert('x')</script>\"&"
    question = [{"role": "user", "parts": [{"kind": "text", "text": evil}]}] * 2
    changed: dict[str, dict[str, Any]] = {
        "completion": {"completions": [completion(evil, 1.0)]},
        "question": {"messages": question},
        "option": {"options": [evil, "b"]},
        "answer": {"options": [], "answer": evil},
        "role": {"messages": [{**question[0], "role": evil}, question[1]]},
    }
    record(run, **changed.get(field, {field: evil}))
    found = written(run)
    assert "script" not in {tag for tag, _, _ in found.elements}
    assert evil in found.everything()


def test_settings_names_and_alarms_are_text_too(tmp_path: Path) -> None:
    run = tmp_path / "<script>run"
    with MetricsLog(run, num_steps=1, tensorboard=False) as log:
        log.log(1, {"<script>metric": 1.0, "eval/accuracy": 0.5, "eval/kind/<script>kind": 0.5})
        log.alarm("<script>alarm")
    (run / "config.toml").write_text('model.path = "<script>path"')
    found = written(run)
    assert "script" not in {tag for tag, _, _ in found.elements}
    for name in ("run", "metric", "kind", "alarm", "path"):
        assert f"<script>{name}" in found.everything()


def test_half_a_surrogate_pair_does_not_stop_the_report(run: Path) -> None:
    record(run, completions=[completion("\ud83d", 1.0)])
    assert "&#55357;" in page.write(run).read_text()


@pytest.mark.parametrize("num_bytes", [4_000_000, 4_000_001])
def test_a_large_clip_is_linked(run: Path, num_bytes: int) -> None:
    record(run, messages=clips(("audio", "000-0.wav")))
    (run / "groups/000-0.wav").write_bytes(b"\0" * num_bytes)
    (source,) = written(run).attributes("audio", "src")
    assert (source == "groups/000-0.wav") == (num_bytes > 4_000_000)
    assert source.startswith("data:audio/wav;base64,AAAA") == (num_bytes <= 4_000_000)


def test_the_page_as_a_whole_stays_small(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MAX_MEDIA_BYTES", 25)
    for number in range(4):
        record(run, number, messages=clips(("image", f"00{number}-0.png")))
        (run / f"groups/00{number}-0.png").write_bytes(b"\0" * (10 if number != 3 else 5))
    is_inside = [source.startswith("data:") for source in written(run).attributes("img", "src")]
    assert is_inside == [True, True, False, True]  # 10 + 10, not 30, and 25


def test_what_browsers_cannot_show_is_a_link(run: Path) -> None:
    record(run, messages=clips(("image", "000-0.tiff")))
    (run / "groups/000-0.tiff").touch()
    assert '<a href="groups/000-0.tiff">000-0.tiff</a>' in page.write(run).read_text()
    assert "<img" not in page.write(run).read_text()
