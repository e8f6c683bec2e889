#!/usr/bin/env bash
# grain 0.2.18: each new iterator of a dataset has the same order, and each index has its own random generator.
#
# Seen: the order changes only with `.repeat()`. The random numbers of `.random_map()` do not depend on the order in
# which items are read. grain documents both, and users who come from grain to torchdata-rs need to know it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet grain==0.2.18 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys
from importlib.metadata import version

import grain


def draw(number, generator):
    return int(generator.integers(1000))


dataset = grain.MapDataset.range(20).seed(7).shuffle()
first, second = list(dataset.to_iter_dataset()), list(dataset.to_iter_dataset())
repeated = list(dataset.repeat(2).to_iter_dataset())
random = grain.MapDataset.range(20).seed(7).random_map(draw)
forward, backward = [random[i] for i in range(20)], [random[i] for i in reversed(range(20))]
print("grain", version("grain"))
print("two iterators have one order:", first == second)
print("two epochs of `.repeat(2)` have one order:", repeated[:20] == repeated[20:])
print("random numbers are the same when items are read backward:", forward == backward[::-1])
is_as_described = first == second and repeated[:20] != repeated[20:] and forward == backward[::-1]
sys.exit(0 if is_as_described else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
