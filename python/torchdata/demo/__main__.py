"""`python -m torchdata.demo`: write shards, train, and check accuracy and order; exits 1 where either falls short.

Role: the main process of the demo. Workers import this module under spawn, so nothing runs at import.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from torchdata.demo import data, pipeline, train

_GOAL = 0.90


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdata-rs" / "demo"
    parser = argparse.ArgumentParser(prog="python -m torchdata.demo", description=__doc__)
    parser.add_argument(
        "--data-dir", type=Path, default=cache, help="where the shards are kept (%(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument(
        "--photographs", type=int, default=40, help="JPEG files made of each photograph (%(default)s)"
    )
    return parser.parse_args(arguments)


def _train(folder: Path, total: int, options: argparse.Namespace, model: train.Softmax | None) -> list[str]:
    """Runs all epochs once, and returns the hash of each one's order."""
    orders = []
    with pipeline.loader(pipeline.digits(folder, options.batch_size), options.workers) as loader:
        loader.seed(options.seed)
        for number in range(1, options.epochs + 1):
            title = f"epoch {number}" if model is not None else f"order {number}"
            order, count, seconds = train.epoch(loader, total, title, model)
            if count != total:
                raise RuntimeError(f"{title} yielded {count} digits, but the shards hold {total}")
            print(
                f"{title}: {count} digits in {seconds:.2f} s, {count / seconds:,.0f} a second, order {order}"
            )
            orders.append(order)
    return orders


def _test(folder: Path, options: argparse.Namespace, model: train.Softmax) -> float:
    """The share of the test digits that `model` gets right."""
    right = count = 0
    with pipeline.loader(pipeline.digits(folder, 64, shuffle=False), options.workers) as loader:
        for batch in loader:
            right += int((model.predict(batch["image"]) == batch["label"]).sum())
            count += len(batch["label"])
    return right / count


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo, and returns its exit status."""
    options = _arguments(arguments)
    for module in ("sklearn", "PIL", "tqdm"):
        try:
            data.optional(module)
        except ModuleNotFoundError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    training, testing = data.write_digits(options.data_dir)
    photographs = data.write_photographs(options.data_dir, options.photographs)
    total = sum(1 for i in range(data.DIGITS) if i % data.HELD_OUT)
    print(f"shards in {options.data_dir}; {options.workers} worker processes; seed {options.seed}")

    model = train.Softmax(pixels=64)
    first = _train(training, total, options, model)
    second = _train(training, total, options, None)
    accuracy = _test(testing, options, model)
    with pipeline.loader(pipeline.photographs(photographs, 4), options.workers) as loader:
        _, count, seconds = train.epoch(loader, 2 * options.photographs, "photographs")

    same, shuffled = first == second, len(set(first)) == len(first)
    print(f"photographs: {count} JPEG files decoded in {seconds:.2f} s, {count / seconds:,.0f} a second")
    print(f"test accuracy: {accuracy:.1%} of {data.DIGITS - total} digits (goal: over {_GOAL:.0%})")
    print(f"order: {'the same' if same else 'NOT THE SAME'} in two runs with the same seed, ", end="")
    print("another in every epoch" if shuffled else "NOT another in every epoch")
    return 0 if accuracy > _GOAL and same and shuffled and count == 2 * options.photographs else 1


if __name__ == "__main__":
    sys.exit(main())
