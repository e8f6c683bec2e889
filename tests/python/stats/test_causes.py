"""For 31 causes of slow loading, each loader's diagnosis names the cause and the responsible code."""

from typing import get_args

import pytest

from counted_causes import CAUSES, COLLATES, READS, Door, stats_of
from torchdata._observe.stats.diagnosis import diagnose, waited_for_long

DOORS: tuple[Door, ...] = get_args(Door)
#: For each class of loaders: words of other classes that the diagnosis must not mention.
FOREIGN = {
    "StatefulDataLoader": (
        "DataLoader2",
        "MultiProcessingReadingService",
        "memory_budget",
        "sharding_filter",
        ".batch(",
    ),
    "DataLoader2": ("StatefulDataLoader", "batch_size", "persistent_workers"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named_with_the_code_at_fault_and_advice_for_that_loader(name: str, door: Door) -> None:
    cause = CAUSES[name]
    verdict = diagnose(stats_of(cause, door))
    assert verdict.kind == cause.kind, verdict
    if cause.culprit is not None:
        wanted = READS if cause.culprit == "reads" else (COLLATES[door], "train.py:30")
        assert (verdict.pipe, verdict.location) == wanted, verdict
        assert f"`{wanted[0]}` ({wanted[1]})" in str(verdict)
    for loader, words in cause.words.items():
        assert loader not in ("", door) or words in str(verdict), verdict
    assert not [word for word in FOREIGN[door] if word in str(verdict)], verdict


@pytest.mark.parametrize("door", DOORS)
def test_one_line_with_file_and_line_reports_an_epoch_that_waited_long(door: Door) -> None:
    shown = waited_for_long(stats_of(CAUSES["the disk is slow"], door), door, 0.3)
    assert shown is not None
    assert shown.startswith(f"{door}: in epoch 1, the program waited ")
    assert "`Photos.__getitem__` (train.py:12)" in shown
    assert "\n" not in shown
    assert waited_for_long(stats_of(CAUSES["the disk is slow"], door), door, 0.999) is None
    for name in ("the main process trains", "the dataset is empty", "the epoch has just begun"):
        assert waited_for_long(stats_of(CAUSES[name], door), door, 0.3) is None, name
