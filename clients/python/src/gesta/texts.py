"""Lists of texts that callers give."""

from __future__ import annotations

from typing import Iterable, List


def texts(name: str, given: Iterable[str]) -> List[str]:
    """The texts as a list. One text alone is refused: it would be taken for a list of its letters.

    >>> texts("tags", ("a", "b"))
    ['a', 'b']
    >>> texts("tags", "a")
    Traceback (most recent call last):
    TypeError: tags must be a list of texts, and is the text 'a'
    """
    if isinstance(given, str):
        raise TypeError(f"{name} must be a list of texts, and is the text {given!r}")
    return list(given)
