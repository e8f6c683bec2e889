#!/usr/bin/env bash
# torchdata 0.9.0 (with torch 2.13.0): DataLoader2 with worker processes, after an error, a killed worker or a resume.
#
# Each line shows one small program and what it yields. "nothing" means that it waits for longer than 15 seconds.
# Expected: an error for a killed worker, a loader that can be iterated after an error, each item loaded by one worker,
# another order in each epoch, and the loader's own pipe after a resume.
# Seen: the main process waits forever, the loader is shut down, every worker loads all items, all epochs have one
# order, the pipe is replaced, and if one rank fails, the other rank ends its epoch without an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 torchdata==0.9.0
cat > "$folder/show.py" <<'EOF'
import os
import signal
import threading
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import torch
import torch.distributed
from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
from torchdata.datapipes.iter import IterableWrapper
from torchdata.datapipes.map import SequenceWrapper


def failing(number):
    if number == 3:
        raise KeyError("item 3")
    return number


def killed(number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def without_worker_info(number):
    return torch.utils.data.get_worker_info() is None


def logged(number):
    with open("loaded.txt", "a") as file:
        file.write(f"{number}\n")
    return number


def loader(pipe):
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(2, multiprocessing_context="fork"))


def after_an_error():
    seen, failed = [], loader(IterableWrapper(range(6)).sharding_filter().map(failing))
    for _ in range(2):
        try:
            seen.append(list(failed))
        except Exception as error:
            seen.append(type(error).__name__)
    return seen


def loads_of_six_items():
    list(loader(SequenceWrapper(range(6)).map(logged).to_iter_datapipe().sharding_filter()))
    with open("loaded.txt") as file:
        return len(file.readlines())


def same_order_in_two_epochs():
    shuffled = loader(IterableWrapper(range(8)).shuffle().sharding_filter())
    shuffled.seed(1)
    return list(shuffled) == list(shuffled)


def pipe_after_a_resume():
    saved = DataLoader2(IterableWrapper(range(3)))
    next(iter(saved))
    resumed = DataLoader2(IterableWrapper(range(10, 13)))
    resumed.load_state_dict(saved.state_dict())
    return list(resumed)


def rank(number):
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29517", rank=number, world_size=2)
    try:
        seen = list(IterableWrapper(range(6)).map(failing if number else int).fullsync(timeout=8))
    except Exception:
        time.sleep(12)  # the rank that failed keeps running, for example to write a report
        seen = []
    os._exit(len(seen))


def items_of_the_other_rank():
    context = torch.multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number,)) for number in range(2)]
    for process in ranks:
        process.start()
    ranks[0].join()
    return ranks[0].exitcode


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


programs = {
    "get_worker_info() is None in workers": (
        lambda: list(loader(IterableWrapper(range(2)).sharding_filter().map(without_worker_info))),
        [True, True],
    ),
    "two epochs, an error for item 3": (after_an_error, ["KeyError", "RuntimeError"]),
    "loads of 6 items of a map pipe by 2 workers": (loads_of_six_items, 12),
    "two epochs have one order": (same_order_in_two_epochs, True),
    "items after a resume of a loader over 10, 11, 12": (pipe_after_a_resume, [0, 1, 2]),
    "a rank fails for item 3, the other rank ends without an error, number of its 6 items": (items_of_the_other_rank, 3),
    "a worker is killed": (lambda: list(loader(IterableWrapper(range(6)).sharding_filter().map(killed))), "nothing"),
}
if __name__ == "__main__":
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
