"""Tests that calls with wrong arguments raise clear errors."""

from collections.abc import Callable
from typing import Any

import pytest


def refuses(*rows: tuple[Callable[[], Any], type[Exception], str]) -> Callable[..., None]:
    @pytest.mark.parametrize(("call", "error", "message"), rows)
    def test(call: Callable[[], Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    return test
