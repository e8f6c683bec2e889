#!/usr/bin/env bash
# torchdata 0.11.0 (with torch 2.13.0): nodes and StatefulDataLoader after an error, a killed process or a resume.
#
# Each line shows one small program and what it yields. "nothing" means that it waits for longer than 15 seconds.
# Expected: an error that leaves the next items readable, every item once after a resume, and torch's order.
# Seen: a node waits forever or ends its epoch, items are lost or repeated, and an epoch ends early without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.11.0
cat > "$folder/show.py" <<'EOF'
import os
import signal
import sys
import threading
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import torch
from torch.utils.data import DataLoader, Sampler
from torchdata.nodes import BaseNode, IterableWrapper, Mapper, ParallelMapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader


class TwoValues(Exception):
    def __init__(self, first, second):
        super().__init__(first, second)


class Source(BaseNode):
    """Fails once, before it yields 3."""

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.count = 0

    def next(self):
        self.count += 1
        if self.count == 4:
            raise KeyError("item 3")
        if self.count == 9:
            raise StopIteration
        return self.count - 1

    def get_state(self):
        return {}


def failing(number):
    if number == 3:
        raise TwoValues("item", number)
    return number


def killed(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def stopping(number):
    if number == 3:
        raise StopIteration
    return number


def slow_first(number):
    time.sleep(0.3 if number == 0 else 0.01)
    return number


class Numbers:
    def __init__(self, function=int):
        self.function = function

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.function(index)


class Shuffled(Sampler):
    def __init__(self):
        pass

    def __len__(self):
        return 8

    def __iter__(self):
        return iter(torch.randperm(8).tolist())


def drain(node):
    node.reset()
    seen = []
    while seen[-1:] != ["end"]:
        try:
            seen.append(next(node))
        except StopIteration:
            seen.append("end")
        except Exception as error:
            seen.append(type(error).__name__)
    return seen


def resumed_without_order():
    def build():
        return ParallelMapper(IterableWrapper(range(8)), slow_first, 4, in_order=False, snapshot_frequency=1)

    node = build()
    node.reset()
    seen = [next(node) for _ in range(3)]
    again = build()
    again.reset(node.state_dict())
    return sorted(seen + list(again))


def same_order_as_torch():
    orders = []
    for loader in (DataLoader, StatefulDataLoader):
        torch.manual_seed(0)
        orders.append([batch.tolist() for batch in loader(Numbers(), 4, shuffle=True)])
    return orders[0] == orders[1]


def resumed(workers, **options):
    loader = StatefulDataLoader(Numbers(), 2, num_workers=workers[0], **options)
    batches = iter(loader)
    seen = [next(batches)]
    state = loader.state_dict()
    torch.manual_seed(1)
    loader = StatefulDataLoader(Numbers(), 2, num_workers=workers[1], **options)
    loader.load_state_dict(state)
    return sorted(torch.cat(seen + list(loader)).tolist())


def result(program):
    found = ["nothing"]

    def run():
        try:
            found[0] = program()
        except BaseException as error:
            found[0] = type(error).__name__

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(15)
    return found[0]


everything = list(range(8))
processes = {"method": "process", "multiprocessing_context": "fork"}
programs = {
    "ParallelMapper, its source fails once": (lambda: drain(ParallelMapper(Source(), int, 2)), "nothing"),
    "Prefetcher, its source fails once": (lambda: drain(Prefetcher(Source(), 2)), [0, 1, 2, "KeyError", "end"]),
    "ParallelMapper, an error with two arguments": (
        lambda: drain(ParallelMapper(IterableWrapper(range(5)), failing, 1)),
        [0, 1, 2, "RuntimeError", 4, "end"],
    ),
    "ParallelMapper with prebatch=2, an error for 3": (
        lambda: drain(ParallelMapper(IterableWrapper(range(8)), failing, 1, prebatch=2)),
        [0, 1, "RuntimeError", 4, 5, 6, 7, "end"],
    ),
    "ParallelMapper, a process is killed": (
        lambda: drain(ParallelMapper(IterableWrapper(range(8)), killed, 2, **processes)),
        "nothing",
    ),
    "ParallelMapper, StopIteration for 3": (lambda: drain(ParallelMapper(IterableWrapper(range(8)), stopping, 1)), [0, 1, 2, "end"]),
    "all items with in_order=False and a resume": (lambda: resumed_without_order() == everything, False),
    "StatefulDataLoader has torch's order": (same_order_as_torch, False),
    "StatefulDataLoader, another number of workers": (lambda: resumed((2, 1)), "AssertionError"),
    "StatefulDataLoader, a shuffling sampler: all items after a resume": (
        lambda: resumed((0, 0), sampler=Shuffled()) == everything,
        False,
    ),
    "StatefulDataLoader, StopIteration for 3": (
        lambda: [batch.tolist() for batch in StatefulDataLoader(Numbers(stopping), 2)],
        [[0, 1]],
    ),
}
print("torchdata", version("torchdata"), "and torch", torch.__version__)
changed = False
for name, (program, before) in programs.items():
    seen = result(program)
    changed |= seen != before
    print(f"{name}: {seen}" + (f" instead of {before}" if seen != before else ""), flush=True)
print("The behavior has changed." if changed else "The behavior is as described.", flush=True)
for child in torch.multiprocessing.active_children():
    child.kill()
os._exit(changed)
EOF
cd "$folder"
venv/bin/python show.py
