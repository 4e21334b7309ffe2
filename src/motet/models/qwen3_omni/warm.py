"""A short supervised start for the tiny checkpoint, so that RL has something to sharpen.

Two phases on freshly drawn toy rows:

1. Perception. Towers and language model learn to answer every kind of question.
2. Position bias. The language model alone is taught to prefer the first option, as large models are known to
   (Zheng et al. 2023, "Large Language Models Are Not Robust Multiple Choice Selectors", arXiv 2309.03882), until
   its greedy answers are right about half of the time.

So the policy answers in the right form, perceives, and has a bad habit: what RL is good at removing.
"""

from __future__ import annotations

from motet.config.schema import VideoConfig

VIDEO = VideoConfig(fps=2, max_frames=16, min_pixels=4096, max_pixels=65536)
BATCH_ROWS = 64
