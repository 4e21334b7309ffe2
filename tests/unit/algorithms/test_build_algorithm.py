import pytest

from motet.algorithms import CISPO, DAPO, GRPO, GSPO, RLOO, DrGRPO, build
from motet.config.schema import AlgorithmConfig


@pytest.mark.parametrize(
    ("kind", "expected", "denominator"),
    [
        ("grpo", GRPO(clip_low=0.2, clip_high=0.2, scale="std", kl_weight=0.0), "sequences"),
        ("dr_grpo", DrGRPO(max_tokens=64, clip_low=0.2, clip_high=0.2, kl_weight=0.0), "sequences"),
        ("rloo", RLOO(kl_weight=0.0), "sequences"),
        ("dapo", DAPO(clip_low=0.2, clip_high=0.28, scale="std", kl_weight=0.0), "tokens"),
        ("gspo", GSPO(clip_low=3e-4, clip_high=4e-4, scale="std", kl_weight=0.0), "sequences"),
        ("cispo", CISPO(clip_low=None, clip_high=4.0, scale="std", kl_weight=0.0), "tokens"),
    ],
)
def test_each_kind_with_its_own_defaults(kind, expected, denominator):
    algorithm = build(AlgorithmConfig(kind=kind), max_tokens=64)
    assert algorithm == expected
    assert algorithm.denominator == denominator
    assert not algorithm.needs_reference
    assert build(AlgorithmConfig(kind=kind, kl_weight=1e-3), max_tokens=64).needs_reference


def test_settings_reach_the_algorithm():
    config = AlgorithmConfig(kind="dapo", clip_low=0.1, clip_high=0.4, scale="none", kl_weight=0.5)
    assert build(config, max_tokens=64) == DAPO(clip_low=0.1, clip_high=0.4, scale="none", kl_weight=0.5)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("rloo", {"clip_low": 0.2}),
        ("rloo", {"clip_high": 0.2}),
        ("rloo", {"scale": "std"}),
        ("dr_grpo", {"scale": "std"}),
    ],
)
def test_a_setting_that_is_not_read_is_refused(kind, setting):
    (name,) = setting
    with pytest.raises(ValueError, match=rf"^algorithm\.{name}: {kind} does not read it; remove the setting$"):
        build(AlgorithmConfig(kind=kind, **setting), max_tokens=64)
