"""From the network's output to text."""

import numpy as np

from . import text


def greedy(logits: np.ndarray) -> str:
    """Text of the best label in each frame: repeats merged, then blanks dropped.

    logits: [time, labels], without padding.
    """
    path = logits.argmax(-1)
    is_new = np.concatenate([path[:1] != text.BLANK, path[1:] != path[:-1]])
    return text.to_text(path[is_new & (path != text.BLANK)])
