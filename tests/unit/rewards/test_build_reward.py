import asyncio

import pytest

from motet.config.schema import ChoiceConfig, FunctionConfig, MathConfig, RewardConfig
from motet.rewards import Choice, Math, RewardError, build


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "scoring_rules.py").write_text(
        "import time\n"
        "def one(task, completion): return len(completion.text)\n"
        "def group(task, completions): return [len(completions)] * len(completions)\n"
        "def slow(task, completion): time.sleep(0.5)\n"
    )


def test_built_in_rewards():
    assert build(RewardConfig()) == Choice(format_weight=0.0)
    assert build(RewardConfig(score=ChoiceConfig(format_weight=0.1))) == Choice(format_weight=0.1)
    assert build(RewardConfig(score=MathConfig())) == Math()


@pytest.mark.parametrize(("name", "per", "expected"), [("one", "completion", [2, 1]), ("group", "group", [2, 2])])
def test_a_function(make_task, say, name, per, expected):
    reward = build(RewardConfig(score=FunctionConfig(path=f"scoring_rules:{name}", per=per)))
    assert [score.value for score in asyncio.run(reward(make_task("B"), say("aa", "b")))] == expected


def test_a_function_is_held_to_the_deadline_of_the_config(make_task, say):
    reward = build(RewardConfig(score=FunctionConfig(path="scoring_rules:slow"), timeout_seconds=0.05))
    with pytest.raises(RewardError, match=r"^train.jsonl:18: reward scoring_rules:slow: no result within .* = 0.05;"):
        asyncio.run(reward(make_task("B"), say("a")))


def test_a_function_that_is_not_there_is_refused_before_the_run():
    with pytest.raises(ValueError, match=r"^reward.score.path: module 'scoring_rules' has no 'two'$"):
        build(RewardConfig(score=FunctionConfig(path="scoring_rules:two")))
