"""Character error rate."""

from collections.abc import Iterable, Sequence


def edit_distance(reference: Sequence, hypothesis: Sequence) -> int:
    """Fewest substitutions, insertions and deletions (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for i, expected in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, actual in enumerate(hypothesis, start=1):
            substitution = diagonal + (expected != actual)
            diagonal = row[j]
            row[j] = min(substitution, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def character_error_rate(pairs: Iterable[tuple[str, str]]) -> float:
    """Edits over all (reference, hypothesis) pairs, per reference character.

    Spaces count as characters.
    """
    edits = characters = 0
    for reference, hypothesis in pairs:
        edits += edit_distance(reference, hypothesis)
        characters += len(reference)
    return edits / max(1, characters)
