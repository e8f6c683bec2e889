"""Compares the memory of loaders (the main process and all its children) with PyTorch's DataLoader.

Each measurement runs in its own process, which creates a dataset and a loader, and reads one epoch. While the workers
are running, the measuring process adds up the PSS of itself and its children. The PSS counts each shared page once.
Each measurement is repeated with an empty dataset, to show the cost of the data separately. Another process samples the
PSS every 50 ms to find the peak. Rows 5 and 6 of the output compare the loaders with torchdata 0.9 instead of PyTorch.
The last column shows whether each target is met. Run: `python benches/python/memory.py [--only ROW] [--size 0.5]
[--workers 2] [--upstream-python PYTHON]`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from comparison import memory

HERE = Path(__file__).resolve().parent
INTERVAL_S = 0.05
ALARM_S = 180
#: The seconds that workers need to return unused shared memory to the system.
IDLE_S = 6.0
ITEMS = 100
MAPPED = "TORCHDATA_BENCH_MAPPED"


@dataclass(frozen=True)
class Order:
    row: str
    loader: str
    method: str
    workers: int
    size: float


# -- datasets ----------------------------------------------------------------------------------------------------------


class Rows:
    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.data[index]


class Measured(Rows):
    """A dataset of numbers, so that no large items are in transit during the measurement."""

    def __getitem__(self, index: int) -> Any:
        item = self.data[index]
        if hasattr(item, "sum"):
            return item.sum()
        return len(item) if hasattr(item, "__len__") else item


class Columns(Rows):
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        count = len(self.data) // ITEMS
        if hasattr(self.data, "iloc"):
            return float(self.data.iloc[index * count : (index + 1) * count].sum().sum())
        return self.data.slice(index * count, count).column(0).to_numpy().sum()


class Few(Rows):
    def __len__(self) -> int:
        return min(ITEMS, len(self.data))


def tensor(size: float) -> Any:
    import torch

    return Rows(torch.ones(ITEMS, int(790_000 * size)))


def arrays(size: float) -> Any:
    import numpy

    return Rows([numpy.ones(int(790_000 * size), "f4") for _ in range(ITEMS)])


def byte_strings(size: float) -> Any:
    return Rows([bytes([i]) * int(3_160_000 * size) for i in range(ITEMS)])


def arrow(size: float) -> Any:
    import numpy
    import pyarrow

    return Columns(pyarrow.table({"x": numpy.ones(int(39_500_000 * size))}))


def frame(size: float) -> Any:
    import numpy
    import pandas

    return Columns(pandas.DataFrame({name: numpy.ones(int(9_870_000 * size)) for name in "abcd"}))


def words(size: float) -> list[str]:
    return [f"{i:08d}" * 12 for i in range(int(1_500_000 * size))]


def strings(size: float) -> Any:
    return Every(words(size))


def arrow_strings(size: float) -> Any:
    import pyarrow

    return Every(pyarrow.array(words(size)))


class Every(Rows):
    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        return sum(len(str(self.data[i])) for i in range(index, len(self.data), ITEMS))


def mapped(size: float) -> Any:
    import numpy

    return Rows(numpy.load(os.environ[MAPPED], mmap_mode="r"))


def views(size: float) -> Any:
    import torch

    return Rows(list(torch.arange(2_500_000 * size, dtype=torch.float32).view(200, -1)))


def pairs(size: float) -> Any:
    import torch

    x = torch.ones(50, int(400_000 * size))
    return Rows([(x[i], i) for i in range(50)])


def slices(size: float) -> Any:
    import numpy
    import pyarrow

    table = pyarrow.table({"x": numpy.ones(int(4_000_000 * size))})
    count = len(table) // 20
    return Columns20([table.slice(i * count, count) for i in range(20)])


class Columns20(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.data[index].column(0).to_numpy().sum()


def windows(size: float) -> Any:
    import numpy

    seen = numpy.lib.stride_tricks.sliding_window_view(numpy.ones(int(100_000 * size)), 100)
    return Few(seen)


DATASETS: dict[str, Callable[[float], Any]] = {
    "1 tensor": tensor,
    "2 arrays": arrays,
    "2 bytes": byte_strings,
    "2 Arrow": arrow,
    "2 pandas": frame,
    "3 strings": strings,
    "3 Arrow strings": arrow_strings,
    "4 memmap": mapped,
    "4b views": views,
    "4b pairs": pairs,
    "4b slices": slices,
    "4b windows": windows,
}
#: The start methods of workers. In `METHODS`, "" means a loader without workers.
SHARED = ("forkserver", "spawn", "fork")
#: The maximum memory of the loader, divided by the memory of torch's loader, for each row of the output: in total, and
#: at the peak. Row 3 is not limited.
TARGETS = {"1": (1.0, None), "2": (0.8, None), "4 ": (1.05, None), "4b": (1.05, 1.05)}
TARGET_2_WITH_4 = 0.55
#: Endings of row names: " empty" means an empty dataset, and " read" means that workers send only numbers.
EMPTY, READ = " empty", " read"
#: The maximum memory of an additional worker, divided by the memory of an additional worker with an empty dataset.
FURTHER = 1.05
#: The maximum difference in megabytes between two measurements of the same loader.
NOISE = 5
#: Limits of rows 5 and 6 of the output. `HELD_RATIO` is the limit of the workers' data and the time of an epoch,
#: relative to torchdata 0.9. `HELD_IN_MAIN` limits the number of bytes in the main process and in a state.
HELD_RATIO, HELD_IN_MAIN = 1.1, 64e6
METHODS = dict.fromkeys(DATASETS, SHARED) | {"4b views": ("", *SHARED), "4 memmap": ("", *SHARED)}


# -- loaders -----------------------------------------------------------------------------------------------------------


def same(value: Any) -> Any:
    return value


def torch_loader(kind: Any, dataset: Any, method: str, workers: int) -> Any:
    if not method:
        return kind(dataset, batch_size=None, collate_fn=same)
    return kind(dataset, batch_size=None, collate_fn=same, num_workers=workers, multiprocessing_context=method,
                persistent_workers=True)  # fmt: skip


def two(dataset: Any, method: str, workers: int) -> Any:
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService

    if not method:
        return DataLoader2.from_dataset(dataset)
    service = MultiProcessingReadingService(workers, multiprocessing_context=method)
    return DataLoader2.from_dataset(dataset, reading_service=service)


def loader_over(order: Order, dataset: Any) -> Any:
    if order.loader == "torch":
        from torch.utils.data import DataLoader

        return torch_loader(DataLoader, dataset, order.method, order.workers)
    if order.loader == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return torch_loader(StatefulDataLoader, dataset, order.method, order.workers)
    return two(dataset, order.method, order.workers)


def made(number: int, size: float) -> Any:
    import numpy

    return numpy.full(int(125_000 * size), number, "f8")


class Made:
    def __init__(self, size: float) -> None:
        self.size = size

    def __call__(self, number: int) -> Any:
        return made(number, self.size)


def held_by_pipes(order: Order) -> Any:
    """Returns a loader with one worker. A pipe in the worker stores 400 arrays of 1 MB."""
    from torchdata.dataloader2 import DataLoader2, MultiProcessingReadingService
    from torchdata.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(400)).map(Made(order.size))
    if order.row.startswith("5"):
        pipe = pipe.in_memory_cache(size=1000)
    elif order.row.startswith("6"):
        pipe = IterableWrapper(range(1000)).map(Made(order.size)).shuffle(buffer_size=400)
    return DataLoader2(pipe, reading_service=MultiProcessingReadingService(num_workers=1))


HELD = ("5 cache", "6 shuffle", "none held")


# -- one measurement ---------------------------------------------------------------------------------------------------


def resident() -> dict[str, int]:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    anonymous = next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return {"anonymous": anonymous * 1024}


def measure(order: Order) -> dict[str, float]:
    """Measures the memory of all processes at the end of the last epoch."""
    if order.row in HELD:
        loader: Any = held_by_pipes(order)
    else:
        row = order.row.removesuffix(READ).removesuffix(EMPTY)
        dataset = DATASETS[row](0.001 if EMPTY in order.row else order.size)
        if order.row.endswith(READ):
            dataset = Measured(dataset)
        loader = loader_over(order, dataset)
        del dataset
    gc.collect()
    iterator: Iterator[Any] = iter(())
    seconds = 0.0
    for epoch in range(2):
        began = time.perf_counter()
        iterator = iter(loader)
        for item in iterator:
            del item
        seconds = time.perf_counter() - began
        if epoch == 0 and order.row not in HELD:
            break
    time.sleep(IDLE_S if order.row in HELD else 0.3)
    total, _ = memory.proportional(memory.family(os.getpid()))
    main, _ = memory.proportional([os.getpid()])
    figures = {"total": total, "main": main, "seconds": seconds, **resident()}
    if order.row in HELD and order.loader == "two":
        iterator = iter(loader)
        next(iterator)
        figures["state"] = len(pickle.dumps(loader.state_dict()))
    return figures


def child(order: Order) -> None:
    print(json.dumps(measure(order)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # the shutdown of the loader is not measured


def peak_of(process: subprocess.Popen[str]) -> float:
    """Samples the PSS of a process and its children until the process exits, and returns the highest level that two
    consecutive samples have reached. A single sample is too high if a process maps shared pages during the sampling."""
    peak, last, until = 0, 0, time.monotonic() + ALARM_S
    while process.poll() is None and time.monotonic() < until:
        sample = memory.proportional(memory.family(process.pid))[0]
        peak, last = max(peak, min(last, sample)), sample
        time.sleep(INTERVAL_S)
    return peak


def run(order: Order, python: str) -> dict[str, float] | None:
    """Runs a measurement in its own process, and returns its results, or None if the measurement fails."""
    environ = dict(os.environ)
    if python != sys.executable:
        environ.pop("PYTHONPATH", None)
    process = subprocess.Popen(
        [python, "-W", "ignore", __file__, "--child", json.dumps(asdict(order))],
        cwd=HERE, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        peak = peak_of(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    output, errors = process.communicate()
    if not output:
        print(f"! {order}: {(errors.strip().splitlines() or ['it printed nothing'])[-1]}", flush=True)
        return None
    figures: dict[str, float] = json.loads(output)
    return {**figures, "peak": peak}


def verdict(*parts: tuple[float, float]) -> str:
    return "met" if all(value <= target for value, target in parts) else "NOT MET"


def against_torch(order: Order, figures: dict[str, float], rival: dict[str, float]) -> str:
    ratio, peak = (figures[name] / rival[name] for name in ("total", "peak"))
    text = f", {ratio:.2f} and at peak {peak:.2f} of torch"
    found = next((target for row, target in TARGETS.items() if order.row.startswith(row)), None)
    if found is None:
        return text
    most, most_at_peak = found
    if order.row.startswith("2"):
        if order.method == "fork":  # with "fork", torch's workers also share the dataset
            most = FURTHER
        elif order.workers >= 4:
            most = TARGET_2_WITH_4
    return f"{text}: {verdict((ratio, most), (peak, most_at_peak or peak))}"


def further(order: Order) -> None:
    costs = []
    for row in (f"{order.row}{EMPTY}{READ}", f"{order.row}{READ}"):
        few, many = (run(replace(order, row=row, workers=order.workers + more), sys.executable) for more in (0, 2))
        if few is None or many is None:
            return
        costs.append((many["total"] - few["total"]) / 2e6)
    empty, full = costs
    print(f"  {order.method or 'none':11}{order.loader:10}a further worker: {full:.0f} MB, over an empty dataset "
          f"{empty:.0f} MB: {verdict((full, FURTHER * empty + NOISE))}", flush=True)  # fmt: skip


def compare_held(asked: argparse.Namespace) -> None:
    rows = [row for row in HELD[:2] if not asked.only or any(map(row.startswith, asked.only))]
    loaders = [("two", sys.executable)] + [("0.9", asked.upstream_python)] * bool(asked.upstream_python)
    if not rows:
        return
    found: dict[tuple[str, str], Any] = {}
    for row in ("none held", *rows):
        print(row, flush=True)
        for loader, python in loaders:
            found[row, loader] = line(Order(row, loader, "fork", 1, asked.size), python, None, None)
        ours, theirs, bare, bare_theirs = (
            found.get((name, loader)) for name in (row, "none held") for loader in ("two", "0.9")
        )
        if row == "none held" or not all((ours, theirs, bare, bare_theirs)):
            continue
        more = ours["main"] - bare["main"]
        workers = ours["total"] - bare["total"] - more
        workers_theirs = theirs["total"] - bare_theirs["total"] - (theirs["main"] - bare_theirs["main"])
        ratio, time_ratio = workers / workers_theirs, ours["seconds"] / theirs["seconds"]
        held = f"the worker holds {ratio:.2f} of 0.9's, main {more / 1e6:.0f} MB more, "
        held += f"an epoch takes {time_ratio:.2f}, a state has {ours['state'] / 1e6:.2f} MB"
        targets = (more, HELD_IN_MAIN), (ours["state"], HELD_IN_MAIN)
        met = verdict((ratio, HELD_RATIO), (time_ratio, HELD_RATIO), *targets)
        print(f"  {held}: {met}", flush=True)


def line(order: Order, python: str, empty: dict[str, float] | None, rival: dict[str, float] | None) -> Any:
    figures = run(order, python)
    if figures is None:
        return None
    mega = {name: value / 1e6 for name, value in figures.items()}
    text = f"  {order.method or 'none':11}{order.loader:10}{mega['total']:7.0f} MB, peak {mega['peak']:6.0f}"
    text += f", main {mega['main']:5.0f} (anonymous {mega['anonymous']:5.0f})"
    if empty is not None:
        text += f", for the data {mega['total'] - empty['total'] / 1e6:6.0f}"
    if rival is not None:
        text += against_torch(order, figures, rival)
    print(f"{text}; {figures['seconds']:.2f} s", flush=True)
    return figures


def write_mapped(folder: str, size: float) -> None:
    import numpy

    os.environ[MAPPED] = os.path.join(folder, "mapped.npy")
    numpy.save(os.environ[MAPPED], numpy.ones((ITEMS, int(500_000 * size)), "f4"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], help="only rows that begin with this; may be repeated")
    parser.add_argument("--method", action="append", help="the start methods; 'none' means no workers")
    parser.add_argument("--loader", action="append", help="torch, stateful or two")
    parser.add_argument("--size", type=float, default=0.5, help="the size of the data; 1 means 316 MB in rows 1 and 2")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--empty", action="store_true", help="also measure loaders over empty datasets")
    parser.add_argument("--further", action="store_true", help="also measure the memory of one more worker")
    parser.add_argument("--upstream-python", help="a Python with torchdata 0.9, which rows 5 and 6 need")
    asked = parser.parse_args()
    if asked.child:
        return child(Order(**json.loads(asked.child)))
    chosen = [row for row in DATASETS if not asked.only or any(map(row.startswith, asked.only))]
    print(f"{asked.workers} workers, size {asked.size}, {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory() as folder:
        write_mapped(folder, asked.size)
        for row in chosen:
            print(row, flush=True)
            for method in METHODS[row]:
                if asked.method and (method or "none") not in asked.method:
                    continue
                rival = None
                for loader in asked.loader or ("torch", "stateful", "two"):
                    order = Order(row, loader, method, asked.workers, asked.size)
                    without = Order(f"{row}{EMPTY}", loader, method, asked.workers, asked.size)
                    empty = run(without, sys.executable) if asked.empty else None
                    figures = line(order, sys.executable, empty, rival)
                    rival = figures if loader == "torch" else rival
                    if asked.further and loader != "torch" and method:
                        further(order)
        compare_held(asked)


if __name__ == "__main__":
    multiprocessing.freeze_support()
    main()
