from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from motet.config.load import ConfigError, dump, load
from motet.config.schema import ChoiceConfig, FunctionConfig, MathConfig, RunConfig
from motet.config.settings import sections

REQUIRED = ["run_dir=r", "model.path=m", "data.train=t"]
RECIPE = """\
run_dir = "runs/x"
steps = 7
[model]
path = "m"
[data]
train = "t"
[trainer.optimizer]
lr = 1e-3
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("x.toml")
    path.write_text(RECIPE)
    return path


def fault(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, [*REQUIRED, *overrides])
    return str(caught.value).removeprefix("command line: ")


def test_a_recipe_fills_what_it_says_and_defaults_fill_the_rest(recipe: Path) -> None:
    config = load(recipe, [])
    assert (config.steps, config.trainer.optimizer.lr, config.trainer.optimizer.betas) == (7, 1e-3, (0.9, 0.95))
    assert config.reward.score == ChoiceConfig()


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("steps=3", lambda c: c.steps, 3),
        ("trainer.optimizer.lr=2e-5", lambda c: c.trainer.optimizer.lr, 2e-5),
        ("trainer.optimizer.lr=.5", lambda c: c.trainer.optimizer.lr, 0.5),  # no TOML, still a number
        ("algorithm.kind=rloo", lambda c: c.algorithm.kind, "rloo"),
        ('algorithm.kind="rloo"', lambda c: c.algorithm.kind, "rloo"),
        ("run_dir=runs/a=b", lambda c: c.run_dir, "runs/a=b"),
        ("data.shuffle=false", lambda c: c.data.shuffle, False),
        ("data.media_roots=['a', 'b']", lambda c: c.data.media_roots, ("a", "b")),
        ('reward.score={kind="math"}', lambda c: c.reward.score, MathConfig()),
        ("reward.score={kind='function', path='a:b'}", lambda c: c.reward.score, FunctionConfig(path="a:b")),
    ],
)
def test_an_override_replaces_what_the_recipe_says(recipe: Path, override: str, read: Any, value: Any) -> None:
    assert read(load(recipe, [])) != value
    assert read(load(recipe, [override])) == value


def test_the_last_override_wins(recipe: Path) -> None:
    assert load(recipe, ["steps=3", "steps=4"]).steps == 4


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("trainer.optimiser.lr=1e-3", "trainer.optimizer.lr"),  # a section misspelt
        ("trainer.optimiser={}", "trainer.optimizer"),
        ("rollout.max_token=3", "rollout.max_tokens"),  # a letter short
        ("algorithm.lr=1e-3", "trainer.optimizer.lr"),  # in the wrong section
        ("lr=1e-3", "trainer.optimizer.lr"),
        ("data.image.fps=1", "data.video.fps"),
        ("reward.kind=math", "reward.score.kind"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(override: str, nearest: str) -> None:
    name = override.removesuffix("={}").partition("=")[0]
    assert fault(override) == f"unknown setting '{name}'; did you mean '{nearest}'?"


def test_an_unknown_setting_like_no_other_is_refused_with_what_its_section_has() -> None:
    assert fault("model.foo=1") == "unknown setting 'model.foo'; known here: model.path, model.dtype, model.device"
    assert fault("foo.bar=1").startswith(
        "unknown setting 'foo.bar'; known here: run_dir, seed, steps, max_lag, deadline_seconds, model"
    )


def test_a_fault_names_the_recipe_or_the_command_line(recipe: Path) -> None:
    recipe.write_text(RECIPE + "momentum = 0.9\n")
    with pytest.raises(ConfigError, match=r"^x\.toml: unknown setting 'trainer\.optimizer\.momentum'"):
        load(recipe, ["steps=3"])
    with pytest.raises(ConfigError) as caught:
        load(recipe, ["steps=0"])
    assert str(caught.value).splitlines()[1] == "command line: steps = 0: should be greater than or equal to 1"


def test_unknown_settings_come_before_what_is_missing_because_of_them(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("[model]", "[modle]"))
    with pytest.raises(ConfigError) as caught:
        load(recipe, [])
    assert str(caught.value).splitlines() == [
        "x.toml: unknown setting 'modle.path'; did you mean 'model.path'?",
        "x.toml: missing setting 'model.path': Hugging Face folder of the model: config, weights, tokenizer, "
        "processor, chat template.",
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("steps=0", "steps = 0: should be greater than or equal to 1"),
        ("max_lag=1.5", "max_lag = 1.5: should be a valid integer, got a number with a fractional part"),
        ("trainer.optimizer.lr=nan", "trainer.optimizer.lr = nan: should be greater than 0"),
        ("run_dir=3", "run_dir = 3: should be a valid string"),
        ("trainer=3", "trainer = 3: should be a section of settings"),
        ("data.media_roots=a", "data.media_roots = 'a': should be a list"),
        ("trainer.optimizer.betas=[0.9]", "trainer.optimizer.betas = [0.9]: has too few values"),
        ("trainer.optimizer.betas=[0.9, 0.9, 0.9]", "trainer.optimizer.betas = [0.9, 0.9, 0.9]: has too many values"),
        (
            "algorithm.kind=ppo",
            "algorithm.kind = 'ppo': should be 'grpo', 'dr_grpo', 'rloo', 'dapo', 'gspo' or 'cispo'",
        ),
        ("reward.score.kind=chioce", "reward.score.kind = 'chioce': should be 'choice', 'math' or 'function'"),
        (
            "reward.score.format_weight=0.5",
            "missing setting 'reward.score.kind': should be 'choice', 'math' or 'function'",
        ),
        ("reward.score=math", "reward.score = 'math': should be a section of settings, such as {kind = 'choice'}"),
        (
            'reward.score={kind="math", path="a:b"}',
            "setting 'reward.score.path' is for reward.score.kind 'function', and the kind here is 'math'",
        ),
        (
            'reward.score={kind="choice", format_weight=2}',
            "reward.score.format_weight = 2: should be less than or equal to 1",
        ),
        ("steps", "'steps' is no override; write name=value, such as steps=10"),
        ("a..b=1", "'a..b=1' is no override; write name=value, such as steps=10"),
        ("run_dir.x=1", "cannot set 'run_dir.x': 'run_dir' is no section"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_setting_the_value_and_what_is_allowed(override: str, line: str) -> None:
    assert fault(override) == line


def test_a_member_of_a_union_says_what_it_misses() -> None:
    assert fault("reward.score.kind=function").startswith(
        "missing setting 'reward.score.path': `package.module:function`"
    )


def test_a_file_that_is_no_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"/nope\.toml: no such file; give a TOML file"):
        load(tmp_path / "nope.toml", [])
    with pytest.raises(ConfigError, match="is a folder; give a TOML file"):
        load(tmp_path, [])
    broken = tmp_path / "broken.toml"
    broken.write_text("steps = 3\nlr\n")
    with pytest.raises(ConfigError, match=r"/broken\.toml: not TOML: .*line 2"):
        load(broken, [])
    broken.write_bytes(b"run_dir = '\xff'\n")
    with pytest.raises(ConfigError, match=r"/broken\.toml: not UTF-8 text \(byte 11\)"):
        load(broken, [])


# ---- dump --------------------------------------------------------------------------------------


def round_trip(config: RunConfig, folder: Path) -> RunConfig:
    (folder / "config.toml").write_text(dump(config), encoding="utf-8")
    return load(folder / "config.toml", [])


def test_dump_writes_every_setting_that_is_set(recipe: Path) -> None:
    text = dump(load(recipe, ["data.media_roots=['a','b']", "data.shuffle=false"]))
    assert text.startswith(
        'run_dir = "runs/x"\nseed = 0\nsteps = 7\nmax_lag = 0\ndeadline_seconds = 3600.0\n\n[model]\n'
    )
    assert '\nmedia_roots = ["a", "b"]\n' in text and "\nshuffle = false\n" in text
    assert "\n[trainer.optimizer]\nlr = 0.001\nbetas = [0.9, 0.95]\n" in text
    assert "heldout" not in text


@given(
    text=st.text(st.characters(exclude_categories=["Cs"])),
    lr=st.floats(min_value=0, exclude_min=True, allow_nan=False),
    seed=st.integers(-(2**40), 2**40),
    score=st.sampled_from([ChoiceConfig(format_weight=0.25), MathConfig(), FunctionConfig(path="a:b", per="group")]),
    max_rows=st.none() | st.integers(min_value=1),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dump_loads_back_equal(tmp_path: Path, text: str, lr: float, seed: int, score: Any, max_rows: Any) -> None:
    config = RunConfig.model_validate(
        {
            "run_dir": text,
            "seed": seed,
            "model": {"path": 'quote " backslash \\ newline \n'},
            "data": {"train": "t", "media_roots": (text, "ä😀\x7f")},
            "reward": {"score": score},
            "trainer": {"optimizer": {"lr": lr}},
            "eval": {"max_rows": max_rows},
        }
    )
    assert round_trip(config, tmp_path) == config


def test_unset_is_the_default_of_whatever_may_be_unset() -> None:
    """Dump leaves unset settings out, as TOML has no word for them; this is what makes it lossless."""
    optional = [
        (section.setting(name), field.default)
        for section in sections()
        for name, field in section.model.model_fields.items()
        if "None" in str(field.annotation)
    ]
    assert ("data.heldout", None) in optional
    assert {default for _, default in optional} == {None}


RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("**/*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_every_recipe_loads_and_dumps(path: Path, tmp_path: Path) -> None:
    config = load(path, [])
    assert round_trip(config, tmp_path) == config


def test_there_are_recipes() -> None:
    assert "tiny.toml" in [path.name for path in RECIPES]
