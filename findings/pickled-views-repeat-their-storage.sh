#!/usr/bin/env bash
# torch 2.13.0: pickle writes the whole storage of a tensor once for each view of it.
#
# A batch of 100 rows is split into a list of its rows, and the list is pickled.
# Expected: about the size of the batch (40 kB), as with torch.save, which writes a storage once.
# Seen: 100 times that size. The size grows with the square of the number of rows.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
cat > "$folder/show.py" <<'EOF'
import io
import pickle
import sys
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
import torch

batch = torch.zeros(100, 100)
rows = list(batch)
saved = io.BytesIO()
torch.save(rows, saved)
whole, pickled = len(pickle.dumps(batch)), len(pickle.dumps(rows))
print("torch", torch.__version__)
print(f"expected: the batch takes {whole:,} bytes, its rows by torch.save take {len(saved.getvalue()):,} bytes")
print(f"seen:     its rows by pickle take {pickled:,} bytes")
sys.exit("The behavior has changed." if pickled < 100 * batch.nbytes else 0)
EOF
cd "$folder"
venv/bin/python show.py
