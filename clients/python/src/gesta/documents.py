"""JSON that came from a server. Events hold what others have stored, so it may be more than Python reads by itself."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Union

from .errors import Problem


def read(text: Union[str, bytes]) -> Any:
    """The value of a JSON text; anything else is a `ValueError`.

    An integer of more digits than Python takes for an `int` (4,300, unless the program has set another limit) becomes a
    `Decimal`.

    >>> read('{"a": [1, 2.5]}')
    {'a': [1, 2.5]}
    """
    try:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise
        except ValueError:
            return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def unreadable(error: ValueError, status: int) -> Problem:
    """The exception for an answer that came whole and cannot be read, which no trying again changes."""
    return Problem({"title": "The answer cannot be read", "detail": str(error), "status": status})


def _integer(digits: str) -> Any:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)
