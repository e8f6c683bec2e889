#!/usr/bin/env bash
# torch 2.13.0, webdataset 1.0.2, torchdata 0.11.0, litdata 0.2.76, spdl 0.8.0, megatron-energon 7.4.0: states, diagnosis.
#
# README's table compares these loaders with torchdata-rs. This script shows the cells that no public page shows.
# Seen: if a worker is killed, the loader raises an error. The loaders of torch, webdataset and spdl cannot save their
# position, and the loaders of torch, webdataset and torchdata have no public name for statistics or a diagnosis. The
# loaders of litdata and energon derive from torch's loader. energon's watchdog prints the stack of a stalled loader.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 webdataset==1.0.2 litdata==0.2.76 spdl-core==0.8.0 \
    megatron-energon==7.4.0 torchdata==0.11.0 numpy==2.4.6
cat > "$folder/show.py" <<'EOF'
import contextlib
import io
import os
import signal
import sys
import threading
import time
import warnings
from importlib.metadata import version

warnings.filterwarnings("ignore")
import litdata
import megatron.energon
import spdl.pipeline
import webdataset
from megatron.energon.watchdog import Watchdog
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader


class Numbers(IterableDataset):
    def __iter__(self):
        for _ in range(500):
            time.sleep(0.02)
            yield os.getpid()


def after_a_kill(loader):
    """Kills the worker that sent the first item, and returns the name of the exception that the loader raises."""
    items = iter(loader)
    os.kill(int(next(items)), signal.SIGKILL)
    try:
        for _ in items:
            pass
    except Exception as error:
        return type(error).__name__
    return "nothing"


def public_names(kind, *fragments):
    return [name for name in dir(kind) if name[0] != "_" and any(fragment in name for fragment in fragments)]


def diagnosis_names(kind):
    return [name for name in public_names(kind, "stat", "diagnos", "profil", "metric") if "state" not in name]


def stack_of_a_stall():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with contextlib.suppress(StopIteration):
            next(iter(Watchdog(timeout=0.5, callback=lambda: None, enabled=False).watch_iter(stalled())))
    return printed.getvalue()


def stalled():
    time.sleep(3)
    yield 0


if __name__ == "__main__":
    limit = threading.Timer(120, lambda: (print("A loader waits for more than 2 minutes.", flush=True), os._exit(1)))
    limit.daemon = True
    limit.start()
    loaders = {
        "torch": (DataLoader, DataLoader(Numbers(), batch_size=None, num_workers=2)),
        "webdataset": (webdataset.WebLoader, webdataset.WebLoader(Numbers(), batch_size=None, num_workers=2)),
        "spdl_core": (spdl.pipeline.Pipeline, spdl.pipeline.iterate_in_subprocess(Numbers)),
    }
    is_as_described = True
    for name, (kind, loader) in loaders.items():
        error, states = after_a_kill(loader), public_names(kind, "state", "checkpoint")
        diagnosis = diagnosis_names(kind)
        print(f"{name} {version(name)}: after a kill {error}; names for states {states}, for diagnosis {diagnosis}")
        is_as_described &= error == "RuntimeError" and not states and (name == "spdl_core" or not diagnosis)
    diagnosis = diagnosis_names(StatefulDataLoader)
    print(f"torchdata {version('torchdata')}: names for diagnosis {diagnosis}")
    is_as_described &= not diagnosis
    for name, kind in {"litdata": litdata.StreamingDataLoader, "megatron-energon": megatron.energon.SavableDataLoader}.items():
        print(f"{name} {version(name)}: derives from torch's loader: {issubclass(kind, DataLoader)}")
        is_as_described &= issubclass(kind, DataLoader)
    stack = stack_of_a_stall()
    print("megatron-energon: the watchdog's output names the stalled function:", "stalled" in stack)
    sys.exit(0 if is_as_described and "stalled" in stack else "The behavior has changed.")
EOF
cd "$folder"
venv/bin/python show.py
