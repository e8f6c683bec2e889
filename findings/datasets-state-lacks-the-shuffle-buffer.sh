#!/usr/bin/env bash
# datasets 5.2.0 (with torch 2.13.0 and torchdata 0.11.0): the state of a shuffled stream does not contain its buffer.
#
# Expected: the samples before the state and the samples after the resume are the samples of the dataset, once each.
# Seen: samples that were in the shuffle buffer are lost, and a warning is logged. If two workers of torchdata 0.11.0's
# StatefulDataLoader load such a state, an IndexError is raised.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.11.0 datasets==5.2.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
from datasets import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader


def shuffled():
    stream = Dataset.from_dict({"x": list(range(100))}).to_iterable_dataset(num_shards=4)
    return stream.shuffle(seed=0, buffer_size=20)


def resumed(source, count):
    """Reads `count` samples, saves the state, and reads the other samples from a new source that loads the state."""
    first, second = source(), source()
    samples = iter(first)
    numbers = [next(samples)["x"] for _ in range(count)]
    second.load_state_dict(first.state_dict())
    return numbers + [sample["x"] for sample in second]


if __name__ == "__main__":
    different = len(set(resumed(shuffled, 50)))
    try:
        resumed(lambda: StatefulDataLoader(shuffled(), batch_size=None, num_workers=2), 10)
        error = "no error"
    except Exception as raised:
        error = type(raised).__name__
    print("datasets", version("datasets"), "and torchdata", version("torchdata"))
    print("expected: 100 different samples, and no error with workers")
    print(f"seen:     {different} different samples, and {error} with workers")
    sys.exit(0 if different < 100 and error == "IndexError" else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
