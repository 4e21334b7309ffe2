import asyncio
import functools
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from motet.rewards import RewardError, load_function, per_completion, per_group, with_deadline
from motet.types import Score


def length(task, completion):
    return len(completion.text)


async def length_later(task, completion):
    await asyncio.sleep(0)
    return Score(value=len(completion.text), parts={"length": 1.0})


class Weighted:
    def __call__(self, task, completion, weight=2):
        return weight * len(completion.text)


def ranks(task, completions):
    ordered = sorted(completion.text for completion in completions)
    return [ordered.index(completion.text) for completion in completions]


async def ranks_later(task, completions):
    return [Score(value=rank) for rank in ranks(task, completions)]


def values(reward, task, completions):
    return [score.value for score in asyncio.run(reward(task, completions))]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (length, [2, 0, 1]),
        (length_later, [2, 0, 1]),
        (Weighted(), [4, 0, 2]),
        (functools.partial(Weighted(), weight=3), [6, 0, 3]),
        (lambda task, completion: completion.text == "aa", [1, 0, 0]),
        (lambda task, completion: np.float32(0.5), [0.5, 0.5, 0.5]),
    ],
)
def test_per_completion(make_task, say, function, expected):
    assert values(per_completion(function), make_task("B"), say("aa", "", "c")) == expected


@pytest.mark.parametrize("function", [ranks, ranks_later])
def test_per_group(make_task, say, function):
    assert values(per_group(function), make_task("B"), say("b", "c", "a")) == [1, 2, 0]


def test_parts_are_kept(make_task, say):
    scores = asyncio.run(per_completion(length_later)(make_task("B"), say("aa")))
    assert scores == [Score(value=2, parts={"length": 1.0})]


def test_a_plain_function_does_not_block_the_loop(make_task, say):
    """It waits for what only the loop can do meanwhile."""
    released = threading.Event()
    reward = per_completion(lambda task, completion: released.wait(5))

    async def main():
        scoring = asyncio.create_task(reward(make_task("B"), say("a")))
        await asyncio.sleep(0.01)
        released.set()
        return await scoring

    assert asyncio.run(main()) == [Score(value=1.0)]


def test_async_calls_of_a_group_run_side_by_side(make_task, say):
    barrier = asyncio.Barrier(3)

    async def together(task, completion):
        await barrier.wait()
        return 1

    reward = with_deadline(per_completion(together), 5)
    assert values(reward, make_task("B"), say("a", "b", "c")) == [1, 1, 1]


def test_a_good_reward_passes_through_the_deadline(make_task, say):
    assert values(with_deadline(per_completion(length), 5), make_task("B"), say("aa", "b")) == [2, 1]


def raises(task, completion):
    raise KeyError("colour")


def raises_lines(task, completion):
    raise RuntimeError("first\nsecond")


def stops(task, completion):
    return next(iter(()))


async def raises_later(task, completion):
    raise TimeoutError("judge is down")


@pytest.mark.parametrize(
    ("reward", "reason", "cause"),
    [
        (per_completion(raises), "KeyError: 'colour'", KeyError),
        (per_completion(raises_lines), "RuntimeError: first", RuntimeError),
        (per_completion(raises_later), "TimeoutError: judge is down", TimeoutError),
        (per_completion(stops), "RuntimeError: coroutine raised StopIteration", RuntimeError),
        (per_group(lambda t, c: [1.0]), "ValueError: returned 1 scores for 2 completions", ValueError),
        (per_group(lambda t, c: [1.0] * 3), "ValueError: returned 3 scores for 2 completions", ValueError),
        (
            per_group(lambda t, c: [0, float("nan")]),
            "ValueError: value of completion 1 is nan; it must be a finite number",
            ValueError,
        ),
        (
            per_completion(lambda t, c: Score(value=1, parts={"judge": float("inf")})),
            "ValueError: judge of completion 0 is inf; it must be a finite number",
            ValueError,
        ),
        (
            per_completion(lambda t, c: None),
            "TypeError: returned None, neither a number nor a motet.types.Score",
            TypeError,
        ),
        (
            per_completion(lambda t, c: "1.0"),
            "TypeError: returned '1.0', neither a number nor a motet.types.Score",
            TypeError,
        ),
    ],
)
def test_what_goes_wrong_names_row_and_reward(make_task, say, reward, reason, cause):
    with pytest.raises(RewardError) as caught:
        asyncio.run(with_deadline(reward, 5, name="reward m:f")(make_task("B"), say("a", "b")))
    assert str(caught.value) == f"train.jsonl:18: reward m:f: {reason}"
    assert isinstance(caught.value, ValueError)
    assert type(caught.value.__cause__) is cause


async def hangs_later(task, completion):
    await asyncio.sleep(60)


def test_a_hanging_reward_meets_its_deadline(make_task, say):
    released = threading.Event()
    for function in (lambda task, completion: released.wait(60), hangs_later):
        started = time.perf_counter()
        with pytest.raises(RewardError) as caught:
            asyncio.run(with_deadline(per_completion(function), 0.05, name="reward m:f")(make_task("B"), say("a")))
        assert 0.05 <= time.perf_counter() - started < 5
        assert str(caught.value) == (
            "train.jsonl:18: reward m:f: no result within reward.timeout_seconds = 0.05; make it faster or raise that"
        )
        assert isinstance(caught.value.__cause__, TimeoutError)
    released.set()


def test_a_hanging_plain_function_does_not_keep_the_process(tmp_path):
    program = textwrap.dedent(
        """
        import asyncio, time
        from motet.rewards import RewardError, per_group, with_deadline
        from motet.types import Task
        reward = with_deadline(per_group(lambda task, completions: time.sleep(60)), 0.05)
        try:
            asyncio.run(reward(Task(id="t", messages=(), answer="B", source="train.jsonl:18"), []))
        except RewardError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("train.jsonl:18: the reward: no result within")
    assert done.stderr == ""


def test_load_function(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "rules.py").write_text("CONSTANT = 3\ndef short(task, completion):\n    return 1.5\n")
    (tmp_path / "needy.py").write_text("import nowhere_to_be_found\n")
    assert load_function("house.rules:short")(None, None) == 1.5
    for path, message in {
        "house.rules": "reward.score.path: 'house.rules' is not of the form `package.module:function`",
        "house.rules:": "reward.score.path: 'house.rules:' is not of the form `package.module:function`",
        "rules/x:short": "reward.score.path: 'rules/x:short' is not of the form `package.module:function`",
        "house.rulez:short": "reward.score.path: cannot import 'house.rulez' (No module named 'house.rulez'); "
        "is its folder on PYTHONPATH?",
        "needy:short": "reward.score.path: cannot import 'needy' (No module named 'nowhere_to_be_found'); "
        "is its folder on PYTHONPATH?",
        "house.rules:long": "reward.score.path: module 'house.rules' has no 'long'",
        "house.rules:CONSTANT": "reward.score.path: 'house.rules:CONSTANT' is a int, not a function",
    }.items():
        with pytest.raises(ValueError) as caught:
            load_function(path)
        assert str(caught.value) == message
