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


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torchdata-rs" / "demo"
    parser = argparse.ArgumentParser(
        prog="python -m torchdata.demo",
        description="Trains a classifier on real images that worker processes load: writes shards, trains, and checks "
        "accuracy and order. Exits 1 where either falls short.",
    )
    parser.add_argument("--data-dir", type=Path, default=cache, help="where the shards are kept (%(default)s)")
    parser.add_argument("--epochs", type=_positive, default=3, help="(%(default)s)")
    parser.add_argument("--batch-size", type=_positive, default=16, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--photographs", type=int, default=40, help="JPEG files made of each photograph (%(default)s)")
    return parser.parse_args(arguments)


def _train(folder: Path, total: int, options: argparse.Namespace, model: train.Softmax | None) -> list[train.Epoch]:
    """Runs all epochs once; trains the model in them, if there is one."""
    epochs = []
    with pipeline.loader(pipeline.digits(folder, options.batch_size), options.workers) as loader:
        loader.seed(options.seed)
        for number in range(1, options.epochs + 1):
            title = f"epoch {number}" if model is not None else f"order {number}"
            result = train.epoch(loader, total, title, model)
            if result.count != total:
                raise RuntimeError(f"{title} yielded {result.count} digits, but the shards hold {total}")
            learnt = f"loss {result.loss:.3f}, accuracy {result.accuracy:.1%}, " if model is not None else ""
            print(f"{title}: {learnt}{_speed(result, 'digits')}, order {result.order}")
            epochs.append(result)
    return epochs


def _speed(result: train.Epoch, what: str) -> str:
    return f"{result.count} {what} in {result.seconds:.2f} s, {result.count / result.seconds:,.0f} a second"


def _where_time_went(epochs: list[train.Epoch]) -> str:
    seconds, waited = sum(epoch.seconds for epoch in epochs), sum(epoch.waited for epoch in epochs)
    return f"waited for data {waited / seconds:.0%} of the time ({waited:.2f} of {seconds:.2f} s), trained in the rest"


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
        decoded = train.epoch(loader, 2 * options.photographs, "photographs")

    orders = [epoch.order for epoch in first]
    same, shuffled = orders == [epoch.order for epoch in second], len(set(orders)) == len(orders)
    print(f"photographs: {_speed(decoded, 'JPEG files decoded')}")
    print(f"time: in the {len(first)} epochs of training main {_where_time_went(first)}")
    print(f"test accuracy: {accuracy:.1%} of {data.DIGITS - total} digits (goal: over {_GOAL:.0%})")
    print(f"order: {'the same' if same else 'NOT THE SAME'} in two runs with the same seed, ", end="")
    print("another in every epoch" if shuffled else "NOT another in every epoch")
    return 0 if accuracy > _GOAL and same and shuffled and decoded.count == 2 * options.photographs else 1


if __name__ == "__main__":
    sys.exit(main())
