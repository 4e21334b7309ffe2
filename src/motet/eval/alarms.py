"""What in a run needs a human eye. Each rule speaks once when it comes true, and again only after it was false."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

ENTROPY_SHARE = 0.1
"""Entropy below this share of the first step's: the policy has collapsed on one way of answering."""
NO_SPREAD_SHARE = 0.9
"""More groups than this without spread: hardly anything is learned from what is sampled."""


class Alarms:
    """Watches the metrics of a run.

    Args:
        drop: how far below the best held-out accuracy is a fall.
    """

    def __init__(self, *, drop: float) -> None:
        self._drop = drop
        self._best: float | None = None
        self._first_entropy: float | None = None
        self._ringing: set[str] = set()

    def __call__(self, metrics: Mapping[str, float]) -> list[str]:
        """Messages about the step that has these metrics."""
        rules = {"eval/accuracy": self._fall, "entropy": self._collapse, "group/no_spread": _no_spread}
        messages = {name: rule(metrics[name]) for name, rule in rules.items() if name in metrics}
        new = [message for name, message in messages.items() if message and name not in self._ringing]
        self._ringing.difference_update(messages)  # what this step did not measure goes on ringing
        self._ringing.update(name for name, message in messages.items() if message)
        return new

    def replay(self, metrics: Path, last_step: int) -> None:
        """Take in what a resumed run logged in `metrics.jsonl` up to `last_step`, silently."""
        for line in metrics.read_text().splitlines(keepends=True):
            if line.endswith("\n") and (record := json.loads(line))["step"] <= last_step:
                self({name: value for name, value in record.items() if value is not None})

    def _fall(self, accuracy: float) -> str | None:
        self._best = max(accuracy, self._best or 0.0)
        if accuracy >= self._best - self._drop:
            return None
        return f"held-out accuracy fell to {accuracy:.3f} from its best, {self._best:.3f}; lower trainer.optimizer.lr"

    def _collapse(self, entropy: float) -> str | None:
        if self._first_entropy is None:
            self._first_entropy = entropy
        if entropy >= ENTROPY_SHARE * self._first_entropy:
            return None
        return f"entropy collapsed to {entropy:.3g} from {self._first_entropy:.3g}; the policy hardly explores any more"


def _no_spread(share: float) -> str | None:
    if share <= NO_SPREAD_SHARE:
        return None
    return f"{share:.0%} of the groups have no spread of rewards and teach nothing; use harder or easier rows"
