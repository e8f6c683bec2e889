#!/usr/bin/env bash
# lhotse 1.33.0: a SimpleCutSampler that resumes on one of several ranks yields a batch that the rank has already had.
#
# One of two ranks takes two batches of a sampler and saves the sampler's state. A new sampler loads the state.
# Expected: the new sampler yields the rest of the rank's batches, as DynamicCutSampler does.
# Seen: the second batch is yielded a second time. With one rank, the rest is exact.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 lhotse==1.33.0 numpy==2.4.6 urllib3==2.8.0
cat > "$folder/show.py" <<'EOF'
import copy
import sys

import lhotse
from lhotse import CutSet, MonoCut, Recording
from lhotse.dataset import DynamicCutSampler, SimpleCutSampler


def cuts():
    for number in range(12):
        recording = Recording(id=f"r{number}", sources=[], sampling_rate=16000, num_samples=16000, duration=1.0)
        yield MonoCut(id=str(number), start=0, duration=1.0, channel=0, recording=recording)


def names(batch):
    return [cut.id for cut in batch]


def rest_after_two_batches(kind, ranks):
    def sampler():
        return kind(CutSet.from_cuts(cuts()), max_cuts=1, shuffle=False, world_size=ranks, rank=0)

    whole = [names(batch) for batch in sampler()]
    first = sampler()
    batches = iter(first)
    for _ in range(2):
        next(batches)
    second = sampler()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    return whole[2:], [names(batch) for batch in second]


print("lhotse", lhotse.__version__)
exact = {}
for kind in (SimpleCutSampler, DynamicCutSampler):
    for ranks in (1, 2):
        expected, seen = rest_after_two_batches(kind, ranks)
        exact[kind, ranks] = seen == expected
        print(f"{kind.__name__}, rank 0 of {ranks}: expected {sum(expected, [])}, seen {sum(seen, [])}")
described = {(SimpleCutSampler, 1): True, (SimpleCutSampler, 2): False}
described |= {(DynamicCutSampler, 1): True, (DynamicCutSampler, 2): True}
sys.exit(0 if exact == described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py 2> errors || { cat errors; exit 1; }
