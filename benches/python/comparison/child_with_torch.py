"""Runs `child` in a program that imports torch at the top of its main module, as training programs do.

Spawned worker processes import this main module, too, so they also begin by importing torch.
"""

from __future__ import annotations

import torch  # noqa: F401 - for the import's sake

from comparison import child

if __name__ == "__main__":
    child.main()
