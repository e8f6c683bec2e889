"""`make demo`: trains on photographs, kills a worker, stops and resumes; exits with 1 if a check fails.

Spawned workers import this module, so nothing runs at import.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from demo import data, pipeline, train
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

_GOAL = 0.90
_CLASSES = ("temple", "flower")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdata-rs" / "demo"
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Trains a linear probe on photographs that worker processes load, beside torch's DataLoader if "
        "torch is installed; kills a worker; stops in the middle of an epoch and resumes. Exits 1 if anything falls "
        "short.",
    )
    parser.add_argument("--data-dir", type=Path, default=cache, help="the folder for the shards (default: %(default)s)")
    parser.add_argument("--epochs", type=_positive, default=3, help="(%(default)s)")
    parser.add_argument("--batch-size", type=_positive, default=16, help="(%(default)s)")
    parser.add_argument("--workers", type=_positive, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--photographs", type=_positive, default=480, help="JPEG files for training (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def _loader(
    folder: Path, options: argparse.Namespace, training: bool = True, stats: Any = None, **service: Any
) -> DataLoader2[Any]:
    pipe = pipeline.photographs(folder, options.batch_size, training)
    loader = DataLoader2(pipe, reading_service=MultiProcessingReadingService(options.workers, **service), stats=stats)
    loader.seed(options.seed)
    return loader


def _train(folder: Path, options: argparse.Namespace, model: train.Softmax) -> str:
    """Trains one model with this package's loader and one with torch's loader, alternately."""
    ours, theirs, other = [], [], train.Softmax(pixels=train.FEATURES, classes=len(_CLASSES), rate=model.rate)
    torchs: Any = None
    with _loader(folder, options, stats="full") as loader:
        for number in range(1, options.epochs + 1):
            found = train.epoch(loader, model)
            ours.append(found.count / found.seconds)
            rival = ""
            if number == 1:  # only now, because this package's workers do not need torch
                torchs = _loader_of_torch(folder, options)
            if torchs is not None:
                second = train.epoch(torchs, other)
                theirs.append(second.count / second.seconds)
                rival = f" (torch's DataLoader: {theirs[-1]:,.0f})"
            print(
                f"epoch {number}: loss {found.loss:.3f}, {found.accuracy:.1%} correct, {ours[-1]:,.0f} images/s{rival}"
            )
        verdict = str(loader.diagnose())
    rate = max(ours)  # the epoch that other programs disturbed least
    if not theirs:
        return f"{rate:,.0f} images/s; torch is not installed, so its DataLoader was not measured. {verdict}"
    ratio = rate / max(theirs)
    return f"{ratio:.2f} times as fast as torch's DataLoader with the same number of workers and Pillow. {verdict}"


def _test(folder: Path, options: argparse.Namespace, model: train.Softmax) -> float:
    """Returns the fraction of the test photographs that `model` classifies correctly."""
    right = count = 0
    with _loader(folder, options, training=False) as loader:
        for batch in loader:
            right += int((model.predict(train.small(batch["image"])) == batch["label"]).sum())
            count += len(batch["label"])
    return right / count


def _loader_of_torch(folder: Path, options: argparse.Namespace) -> Any:
    """Returns torch's loader of the same samples, with the same number of workers, or None if torch is missing."""
    if importlib.util.find_spec("torch") is None:
        return None
    from torch.utils.data import DataLoader, IterableDataset

    dataset = type("TarImages", (pipeline.TarImages, IterableDataset), {})(folder)
    workers = {"num_workers": options.workers, "persistent_workers": True, "multiprocessing_context": "fork"}
    return DataLoader(dataset, options.batch_size, collate_fn=pipeline.stack, **workers)


def _kill_one(loader: DataLoader2[Any]) -> Iterator[Any]:
    """A worker is killed after the second batch."""
    for number, batch in enumerate(loader):
        yield batch
        if number == 1:
            os.kill(loader.stats().workers[0].pid, signal.SIGKILL)


def _survives(folder: Path, options: argparse.Namespace, usual: train.Epoch) -> bool:
    """Kills a worker in an epoch, and returns whether the epoch yields the same batches as without the kill."""
    # The loader prefetches two batches, so that a worker still has batches to create when it is killed.
    with _loader(folder, options, on_worker_exit="restart", worker_prefetch_cnt=2) as loader:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the killed worker is reported below
            found = train.epoch(_kill_one(loader), with_hashes=True)
        restarts = loader.stats().restarts
    # If an epoch has few batches, the worker may already have sent its last batch, and then it is not replaced.
    replaced = restarts == 1 or len(usual.batches) <= 4 * options.workers
    same = found.batches == usual.batches
    outcome = f"{restarts} new worker replaced it" if restarts else "it had already sent all of its images"
    print(
        f"crash: worker process 0 was killed (SIGKILL) in the middle of an epoch; {outcome}; "
        f"{found.count} of {usual.count} images arrived, {'in the same order' if same else 'IN ANOTHER ORDER'}"
    )
    return same and replaced


def _resumes(folder: Path, options: argparse.Namespace, usual: train.Epoch) -> bool:
    """Returns whether a loader that resumes from the middle of an epoch yields exactly the remaining batches."""
    middle = len(usual.batches) // 2
    with _loader(folder, options) as loader:
        batches = iter(loader)
        for _ in range(middle):
            next(batches)
        saved = pickle.dumps(loader.state_dict())
    with DataLoader2.from_state(pickle.loads(saved), MultiProcessingReadingService(options.workers)) as loader:
        found = train.epoch(loader, with_hashes=True)
    same = found.batches == usual.batches[middle:]
    print(
        f"resume: the epoch stopped after batch {middle} of {len(usual.batches)}; the state has "
        f"{len(saved) / 1e6:.1f} MB (it contains the files in the shuffle buffers); a new loader returned the other "
        f"{len(found.batches)} batches, {'with identical pixels' if same else 'WITH OTHER PIXELS'}"
    )
    return same


def main(arguments: list[str] | None = None) -> int:
    options = _arguments(arguments)
    for module in ("sklearn", "PIL"):
        try:
            data.optional(module)
        except ModuleNotFoundError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    training, testing = data.write_photographs(options.data_dir, options.photographs)
    print(
        f"{options.photographs} photographs (JPEG, 640 x 427) in {data.PHOTOGRAPH_SHARDS} tar shards, decoded, cropped "
        f"and mirrored by {options.workers} workers; the model learns to distinguish {' from '.join(_CLASSES)}"
    )
    model = train.Softmax(pixels=train.FEATURES, classes=len(_CLASSES), rate=0.05)
    verdict = _train(training, options, model)
    accuracy = _test(testing, options, model)
    print(f"test: the model classifies {accuracy:.1%} of other crops correctly (goal: more than {_GOAL:.0%})")
    with _loader(training, options) as loader:
        usual = train.epoch(loader, with_hashes=True)
    fine = accuracy > _GOAL and usual.count == options.photographs
    fine &= _survives(training, options, usual)
    fine &= _resumes(training, options, usual)
    print(f"verdict: {verdict}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
