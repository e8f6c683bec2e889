"""Randomly generated pipelines, one of each kind: the diagnosis names the bottleneck, even next to busy programs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from process_checks import nothing_is_left  # noqa: F401
from random_diagnoses import KINDS, Case, case_of, judged, load_of

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def busy() -> Iterator[None]:
    with load_of(len(os.sched_getaffinity(0))):
        yield


@pytest.mark.parametrize(
    "case", list(map(case_of, range(1000, 1000 + len(KINDS)))), ids=lambda case: case.kind.replace(" ", "-")
)
def test_what_limits_a_pipeline_is_named_on_a_busy_machine(case: Case, busy: None) -> None:
    if case.kind == "cores" and not os.path.exists("/proc/self/schedstat"):
        pytest.skip("this kernel does not say who stands in line")
    assert judged(case) == 1
