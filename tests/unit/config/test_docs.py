from __future__ import annotations

from pathlib import Path

from motet.config.docs import markdown
from motet.config.settings import sections

COMMITTED = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_committed_page_is_fresh() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == markdown(), "python -m motet.config.docs > docs/configuration.md"


def test_a_setting_is_a_row_with_type_bounds_default_and_meaning() -> None:
    lines = markdown().splitlines()
    assert (
        "| `run_dir` | text | *required* | Folder of the run: config, metrics, checkpoints, report, summary. |" in lines
    )
    assert "| `lr` | number > 0 | `1e-06` | Peak learning rate of AdamW. |" in lines
    assert "| `betas` | list of 2 numbers | `[0.9, 0.95]` | Decay of the first and second moment. |" in lines
    assert "| `heldout` | text | unset | Rows to evaluate on. Unset: no evaluation. |" in lines
    assert any(
        line.startswith("| `top_p` | number > 0, ≤ 1 | `1.0` | Below 1 is refused in training") for line in lines
    )


def test_members_of_a_union_stand_apart_by_kind() -> None:
    page = markdown()
    assert '\n## `reward.score`, `kind = "choice"` (default)\n' in page
    assert '\n## `reward.score`, `kind = "math"`\n' in page
    function = page.split('\n## `reward.score`, `kind = "function"`\n')[1].split("\n## ")[0]
    assert function.startswith("\nWhat scores a group. Your own function.\n")
    assert "| `path` | text | *required* |" in function


def test_every_setting_has_a_meaning() -> None:
    silent = [
        section.setting(name)
        for section in sections()
        for name, field in section.model.model_fields.items()
        if not (field.description or any(s.name == section.setting(name) for s in sections()))
    ]
    assert silent == []


def test_a_bar_in_a_meaning_does_not_end_the_cell() -> None:
    assert r"KL(policy \|\| frozen reference)" in markdown()
    rows = [line for line in markdown().splitlines() if line.startswith("| `")]
    assert {row.replace(r"\|", "").count("|") for row in rows} == {5}
