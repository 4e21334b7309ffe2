"""The seconds per pair of frames that the model is told: numbers whose positions are the same integers everywhere.

Pair i of a video has the temporal position i * s * 13, s being its seconds per pair, and every place that computes it
does so in its own way:

    processor, ordering frames and sound    float64                               frame before sound a if i*s*13 <= a
    transformers, positions                 float32, fractions kept
    vLLM, ordering frames and sound         s in the model's dtype, then float64  frame before sound a if i*s*13 <= a
    vLLM, positions                         s in the model's dtype, then float64, and cut off; with sound they are laid
                                            along the prompt in an order of their own: a if int(i*s*13) <= a

- So s is a number that bfloat16 holds, off by 0.2 % at most. Then no cast changes it, and no product is rounded.
- Where the video has sound, s is a whole number of seconds. Otherwise i*s*13 has a fraction for some i (thirteenths of
  a second are no binary numbers), and there vLLM's two orders differ by one place: a frame and its sound get each
  other's positions. `sample_frames` chooses the frames of such videos so that this is their true rate.
"""

from __future__ import annotations

from math import frexp, inf, ldexp, nextafter

import numpy as np

from motet.data.media import Video

FRAMES_PER_PAIR = 2
BFLOAT16_BITS = 8
"""Of a significand."""


def seconds_per_pair(clip: Video, fps: float) -> float:
    """Seconds from a pair of frames to the next, rounded to what sampler and trainer compute alike.

    Frames that were chosen at `fps` are told so, though each may be up to half a frame of the clip off: a film of 25 or
    of 29.97 frames per second at `fps = 2` has 1.0. Otherwise (sampled evenly, slower than `fps`, frames left out) it
    is the mean of their true times. A clip of one pair has the rate that was asked for; nothing depends on it.
    """
    times = clip.times
    if clip.audio is not None:
        pairs = times[::FRAMES_PER_PAIR]
        seconds = pairs[-1] / (len(pairs) - 1) if len(pairs) > 1 else FRAMES_PER_PAIR / fps
        return max(1.0, float(round(seconds)))
    # The last frame may be there to make the number even; of a pair, the first one counts.
    late = np.abs(times[:-1] - np.arange(len(times) - 1) / fps).max()
    frame_seconds = 1 / fps if late <= 0.5 / clip.source_fps + 1e-6 else times[-1] / (len(times) - 1)
    significand, exponent = frexp(FRAMES_PER_PAIR * frame_seconds)
    return ldexp(round(ldexp(significand, BFLOAT16_BITS)), exponent - BFLOAT16_BITS)


def processor_fps(seconds: float) -> float:
    """The `fps` for which the processor finds `seconds`, or a number just below it: one just above would put a frame
    after the sound of its time."""
    fps = FRAMES_PER_PAIR / seconds
    return nextafter(fps, inf) if FRAMES_PER_PAIR / fps > seconds else fps
