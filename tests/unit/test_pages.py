"""The pages tell the truth: links lead somewhere, commands parse, example rows are rows, the tree is the tree."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from motet import cli, loop
from motet.config.load import load
from motet.data.rows import to_task

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
NOT_IN_THE_TREE = {"__init__.py", "__pycache__", "py.typed", "conftest.py"}


def blocks(text: str, language: str = "") -> list[str]:
    """Fenced blocks that are marked as being in this language."""
    return [body for marked, body in FENCE.findall(text) if marked == language]


# ---- links -------------------------------------------------------------------------------------


def links(text: str) -> list[tuple[str, str]]:
    """(path, anchor) of relative links; either may be empty."""
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", FENCE.sub("", text))
    return [(path, anchor) for path, _, anchor in (t.partition("#") for t in targets) if "://" not in path]


def anchors(text: str) -> set[str]:
    """What a heading is linked by: lower case, punctuation gone, a hyphen for each space."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for path, anchor in links(text):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            found.append(f"{path}#{anchor}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    assert broken(page, page.read_text()) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Who's there?\n```\n# no heading\n```\n")
    text = "[a](a.md) [b](b.md) [c](a.md#whos-there) [d](a.md#no-heading) [e](https://a.org/b.md)\n"
    assert broken(tmp_path / "page.md", text) == ["b.md#", "a.md#no-heading"]


# ---- commands ----------------------------------------------------------------------------------


def commands(text: str) -> Iterator[str]:
    """`motet ...` where it begins a line of a block, or is a span of code that says more than a command's name."""
    for block in blocks(text):
        yield from (line for line in block.splitlines() if line.startswith("motet "))
    yield from re.findall(r"`(motet [^`\s]+ [^`]+)`", FENCE.sub("", text))
    yield from re.findall(r"^    (motet .+)$", text, re.MULTILINE)


COMMANDS = [(page.name, command) for page in PAGES for command in commands(page.read_text())]


def test_commands_are_found() -> None:
    assert {name for name, _ in COMMANDS} >= {"README.md", "quickstart.md", "configuration.md"}
    assert ("README.md", "motet export runs/tiny work/trained                   # a Hugging Face folder") in COMMANDS


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_parse_and_their_settings_are_settings(page: str, command: str) -> None:
    words = shlex.split(command, comments=True)[1:]
    args = cli._parse(words)
    settings = [word for word in getattr(args, "words", []) if cli.OVERRIDE.match(word)]
    load(ROOT / "recipes" / "tiny.toml", settings)


# ---- rows --------------------------------------------------------------------------------------


def rows(text: str) -> Iterator[Any]:
    for block in blocks(text, "json"):
        yield json.loads(block)


@pytest.mark.parametrize(("page", "num_rows"), [("README.md", 1), ("docs/data.md", 2)])
def test_example_rows_are_rows(page: str, num_rows: int) -> None:
    tasks = [to_task(row, source=page, default_id="row") for row in rows((ROOT / page).read_text())]
    assert [task.answer for task in tasks] == ["B"] * num_rows
    assert tasks[0].modality == "image+audio"
    assert all(task.modality == "video+audio" for task in tasks[1:])


# ---- pictures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_picture_is_the_one_that_opens_the_loop(page: str) -> None:
    (picture,) = (block for block in blocks((ROOT / page).read_text()) if "weight version v" in block)
    assert loop.__doc__ is not None
    assert picture.rstrip() in loop.__doc__


def tree(block: str) -> dict[str, str]:
    """Path -> what is said about it. Two spaces of indentation a level; the name of a folder ends in a slash."""
    entries: dict[str, str] = {}
    folders: list[str] = []
    for line in block.splitlines():
        name, _, does = line.strip().partition(" ")
        del folders[(len(line) - len(line.lstrip())) // 2 :]
        entries["".join(folders) + name] = does.strip()
        if name.endswith("/"):
            folders.append(name)
    return entries


def children(folder: str) -> set[str]:
    """What lies in a folder of the project, as the tree writes it."""
    return {
        f"{folder}{path.name}{'/' * path.is_dir()}"
        for path in (ROOT / folder).iterdir()
        if path.name not in NOT_IN_THE_TREE and not path.name.startswith(".")
    }


def test_the_tree_lists_what_there_is() -> None:
    (block,) = (b for b in blocks((ROOT / "docs" / "architecture.md").read_text()) if b.startswith("src/motet/"))
    entries = tree(block)
    assert all((ROOT / entry).exists() for entry in entries)
    opened = {entry for entry in entries if any(e != entry and e.startswith(entry) for e in entries)}
    packages = {f"{p.parent.relative_to(ROOT)}/" for p in (ROOT / "src" / "motet").rglob("*.py")}
    assert packages <= opened
    for folder in sorted(opened):
        assert {e for e in entries if re.fullmatch(rf"{folder}[^/]+/?", e)} == children(folder), folder
    assert [e for e, does in entries.items() if not does and e not in opened] == []


def test_a_tree_is_read_by_its_indentation() -> None:
    block = "a/\n  b/\n    c.py   does c\n  d.py   does d\ne/   does e\n"
    assert tree(block) == {"a/": "", "a/b/": "", "a/b/c.py": "does c", "a/d.py": "does d", "e/": "does e"}
