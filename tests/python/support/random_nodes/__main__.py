"""Runs random programs over nodes and prints how many of each category were right.

python -m random_nodes --programs 1000 --seed 1 [--python PATH] [--beside PATH]
"""

from __future__ import annotations

import sys

import beside
from random_nodes.graphs import CATEGORIES
from random_nodes.judging import Judge

if __name__ == "__main__":
    sys.exit(beside.main("random_nodes", __doc__, Judge, CATEGORIES))
