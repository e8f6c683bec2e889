#!/usr/bin/env bash
# torch 2.13.0: a DataLoader with workers returns the conjugate of a tensor as the tensor that was conjugated.
#
# `x.conj()` is a view of x with a mark, and `x.conj().imag` is a view with another mark. The worker sends the memory of
# the view without the mark. Neither process raises an error or warns.
# Expected: the same numbers with and without workers.
# Seen: with a worker, the imaginary parts have the opposite sign.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    """One spectrum, conjugated, and its imaginary parts."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        spectrum = torch.fft.fft(torch.tensor([0.0, 1.0, 3.0])).conj()
        return spectrum if index == 0 else spectrum.imag


if __name__ == "__main__":
    here, sent = (list(DataLoader(Spectra(), batch_size=None, num_workers=workers)) for workers in (0, 1))
    print("torch", torch.__version__)
    print("expected:", [item.resolve_conj().tolist() for item in here])
    print("seen:    ", [item.resolve_conj().tolist() for item in sent])
    conjugated = torch.allclose(sent[0], here[0].conj()) and torch.allclose(sent[1], -here[1])
    same = torch.allclose(sent[0], here[0]) or torch.allclose(sent[1], here[1])
    sys.exit("The behavior has changed." if same or not conjugated else 0)
EOF
cd "$folder"
venv/bin/python show.py
