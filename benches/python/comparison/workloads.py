"""The table of the workloads, contenders and goals that the harness runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

OURS = "torchdata-rs"
BEFORE = "before"
WORKERS = 2
TWO = "2 workers"

SETTLING_S = 5.0
"""The number of seconds before the rate is measured, if the number of workers is chosen meanwhile, or many workers
start."""


@dataclass(frozen=True)
class Contender:
    """A contender that `child` runs, with options. `kind` and `item` are set only if the contender's values differ from
    the workload's values.

    The option `main` names the module that is run instead of `child`.
    """

    name: str
    program: str
    options: dict[str, Any] = field(default_factory=dict)
    kind: str | None = None
    item: str | None = None


@dataclass(frozen=True)
class Goal:
    text: str
    rival: str
    at_least: float | None = None
    at_most: float | None = None

    def met(self, ratio: float) -> bool:
        low, high = self.at_least, self.at_most
        return (low is None or ratio >= low) and (high is None or ratio <= high)


@dataclass(frozen=True)
class Workload:
    """One measurement with its contenders and goals. `scale` converts the measured unit (items per second or seconds)
    to the printed unit."""

    name: str
    title: str
    item: str
    contenders: tuple[Contender, ...]
    goals: tuple[Goal, ...] = ()
    kind: str = "rate"
    unit: str = "items/s"
    scale: float = 1.0
    start_method: str = "fork"

    def compared(self) -> Workload:
        now = next(one for one in self.contenders if one.name == OURS)
        return replace(self, contenders=(now, replace(now, name=BEFORE)), goals=())


ours = Contender(OURS, "ours")
upstream = Contender("upstream 0.9.0", "upstream")
torch = Contender("torch", "torch")
torch_numpy = Contender("torch, NumPy kept", "torch", {"numpy": True})


def dispatching(name: str, title: str, item: str, least: float, goal: str) -> Workload:
    options = {"dispatched": True}
    both = (Contender(OURS, "ours", options), Contender(upstream.name, "upstream", options))
    return Workload(name, title, item, both, (Goal(goal, upstream.name, at_least=least),))


def starting(start_method: str, most: float, goal: str) -> Workload:
    return Workload(
        f"start-{start_method}",
        f"start-up to first item, {start_method}",
        "tiny",
        (ours, torch, upstream),
        (Goal(goal, torch.name, at_most=most),),
        kind="first_item",
        unit="ms",
        scale=1e3,
        start_method=start_method,
    )


def starting_with_torch(start_method: str, late: bool = False) -> Workload:
    """Measures how fast a loader starts if the main module imports torch at its top, or later if `late` is True."""
    with_torch = {"imports": ["torch"]} if late else {"main": "child_with_torch"}
    return Workload(
        f"start-{start_method}-torch" + "-late" * late,
        f"start-up to first tensor, {start_method}" + ", torch not imported by the main module" * late,
        "tensor",
        (Contender(OURS, "ours", with_torch), Contender(torch.name, "torch", with_torch)),
        (Goal("no slower than torch", torch.name, at_most=1.0),),
        kind="first_item",
        unit="ms",
        scale=1e3,
        start_method=start_method,
    )


def restarting(start_method: str, most: float, dispatched: bool = False) -> Workload:
    options = {"dispatched": True} if dispatched else {}
    restarted = Contender("a loader started anew", "ours", options, kind="first_item")
    return Workload(
        f"restart-{start_method}" + "-dispatch" * dispatched,
        f"a worker is killed and replaced, {start_method}" + ", with a dispatching process" * dispatched,
        "tiny",
        (Contender(OURS, "ours", options), restarted),
        (Goal(f"at most {most:g} times the start of a loader", restarted.name, at_most=most),),
        kind="restart",
        unit="ms",
        scale=1e3,
        start_method=start_method,
    )


def laid_out(item: str, title: str) -> Workload:
    plain = Contender("plain arrays, moved by us", "ours", item="array")
    goals = (
        Goal("no slower than torch", torch_numpy.name, at_least=1.0),
        Goal("at most 1.5 times the time of plain arrays", plain.name, at_least=1 / 1.5),
    )
    return Workload(f"arrays-{item}", title, item, (ours, torch_numpy, plain), goals)


def small_ones(item: str, title: str, arrays: str, share: float) -> Workload:
    """Compares rates of small tensors and of arrays. Creating and describing the tensors takes most of the time."""
    rival = Contender("arrays, moved by us", "ours", item=arrays)
    goals = (
        Goal("at least 5 times torch", torch.name, at_least=5),
        Goal(f"at least {share:g} of the rate of arrays", rival.name, at_least=share),
    )
    return Workload(item.replace("_", "-"), title, item, (ours, torch, rival), goals)


def timed(name: str, title: str, item: str, least: float) -> Workload:
    both = (Contender(OURS, "ours", {"stats": "full"}), Contender("only counted", "ours"))
    goal = Goal(f"at least {least:g} of the rate without", both[1].name, at_least=least)
    return Workload(name, f"{title}, the time of each pipe taken", item, both, (goal,))


def of_objects(item: str, title: str) -> Workload:
    goals = (Goal("no slower than torch", torch.name, at_least=1.0),)
    return Workload(item.replace("_", "-"), title, item, (ours, torch), goals)


def crowd(workers: int) -> Workload:
    """Measures more workers than cores. The workers only send items, and the last worker starts some seconds after the
    first."""
    options = {"workers": workers, "warm_up": SETTLING_S}
    both = (Contender(OURS, "ours", options), Contender(TWO, "ours"))
    goals = (Goal("at least half the rate of 2 workers", TWO, at_least=0.5),)
    return Workload(f"tiny-{workers}", f"tiny items one by one, {workers} workers", "tiny", both, goals)


def in_splits(name: str, title: str, item: str, graph: str, most: float) -> Workload:
    options = {"graph": graph}
    both = (Contender(OURS, "ours", {**options, "splits": 64}), Contender("a shard for each worker", "ours", options))
    goal = Goal(f"at most {most:g} times the time of one shard in each worker", both[1].name, at_least=1 / most)
    return Workload(f"splits-{name}", f"{title}, splits=64", item, both, (goal,))


def chain(name: str, title: str, case: str) -> Workload:
    """Compares the pipes and the plain generators of one case of `inprocess`. One child process runs both."""
    options = {"case": case}
    return Workload(
        name,
        title,
        "tiny",
        (Contender(OURS, "ours", options), Contender(upstream.name, "upstream", options)),
        (Goal("no more than plain generators", "plain generators", at_most=1.0),),
        kind="in_process",
        unit="ns",
        scale=1e9,
    )


def training(name: str, title: str, crops: str, least: float, fast: bool = False) -> Workload:
    """Measures how fast batches of random JPEG crops arrive. Each contender uses its most suitable decoder."""
    with_torch = {"imports": ["torch"]}
    mine = f"{crops} by us"
    all_of_them = (
        Contender(OURS, "ours", with_torch, item=mine),
        Contender("torch, Pillow", "torch", item=crops),
        Contender("spdl, its own decoder", "spdl", item=f"{crops} by spdl"),  # runs only if FFmpeg is installed
        Contender("spdl's threads, Pillow", "spdl", item=crops),
    )
    more = (Contender('scale="fast"', "ours", with_torch, item=f"{mine}, fast"),) if fast else ()
    goals = (
        Goal(f"at least {least:g} times torch with Pillow", "torch, Pillow", at_least=least),
        Goal("at least 1.15 times spdl", "spdl, its own decoder", at_least=1.15),
    )
    return Workload(name, title, mine, (*all_of_them, *more), goals, unit="images/s", scale=8 if fast else 32)


def reading(name: str, title: str, *libraries: str, least: float = 1.0) -> Workload:
    rivals = tuple(Contender(library, "bare", {"library": library}) for library in libraries)
    goals = tuple(Goal(f"{least:g} of the rate of {library}", library, at_least=least) for library in libraries)
    unit = "records/s" if name.startswith("tfrecord") else "members/s"
    return Workload(name, title, name, (ours, *rivals), goals, kind="format", unit=unit)


def packing(name: str, title: str, item: str) -> tuple[Workload, Workload]:
    options = {method: {"packer": "ours", "method": method} for method in ("first_fit", "in_order")}
    first_fit, in_order = (Contender(OURS, "ours", options[method]) for method in options)
    in_order = replace(in_order, name="ours, in order")
    plain = Contender("plain Python, in order", "bare", {"packer": "plain", "method": "in_order"})
    fitting = Contender("plain Python, first fit", "bare", {"packer": "plain", "method": "first_fit"})
    collator = Contender("plain Python in order, transformers' collator", "bare", {"packer": "transformers"})
    trl = Contender("TRL's pack_dataset (best fit)", "bare", {"packer": "trl"})
    goals = (
        Goal("no slower than transformers' collator", collator.name, at_least=1.0),
        Goal("no slower than plain Python, first fit", fitting.name, at_least=1.0),
        Goal("no slower than TRL's packer", trl.name, at_least=1.0),
    )
    contenders = (first_fit, in_order, fitting, plain, collator, trl)
    rates = Workload(name, title, item, contenders, goals, "packing", "sequences/s")
    by_row = (first_fit, in_order, fitting, plain, trl)
    measured = tuple(replace(one, options={**one.options, "padding": True}) for one in by_row)
    less = (Goal("at most a third of packing in order", plain.name, at_most=1 / 3),)
    share = Workload(f"{name}-padding", f"{title}: share of padding", item, measured, less, "packing", "%", 100.0)
    return rates, share


stateful = Contender(OURS, "stateful")
torch_indexed = Contender(torch.name, "torch-indexed")
upstream_stateful = Contender("upstream 0.11.0", "upstream-stateful")


def batches(
    item: str, title: str, goal: str, at_least: float | None = None, kind: str = "rate", **options: Any
) -> Workload:
    """Measures batches of 64 samples in torch-style loaders. The goals compare the loaders with torch's loader."""
    three = tuple(Contender(one.name, one.program, options) for one in (stateful, torch_indexed, upstream_stateful))
    name = f"loader-{item}" + ("" if kind == "rate" else f"-{kind.replace('_', '-')}") + "-persistent" * bool(options)
    if kind != "rate":
        goals = (Goal(goal, torch.name, at_most=1.0),)
        return Workload(name, title, item, three, goals, kind=kind, unit="ms", scale=1e3)
    return Workload(name, title, item, three, (Goal(goal, torch.name, at_least=at_least),), unit="batches/s")


LOADERS = (
    batches("ready", "StatefulDataLoader: batches of small tensors that cost nothing to make", "5 times torch", 5),
    batches("small", "StatefulDataLoader: batches of 64 small tensors", "no slower than torch", 1),
    batches("pairs", "StatefulDataLoader: batches of 64 dicts of tensor and label", "no slower than torch", 1),
    batches("wide", "StatefulDataLoader: batches of 64 tensors of 150 KiB", "5 times torch", 5),
    batches("arrays", "StatefulDataLoader: batches of 64 NumPy arrays of 12 KiB", "5 times torch", 5),
    batches("images", "StatefulDataLoader: batches of 64 decoded images", "no slower than torch", 1),
    Workload(
        "loader-state",
        "StatefulDataLoader: a stream whose state takes milliseconds to tell",
        "weighty",
        (
            stateful,
            Contender("the same without a state", "stateful", item="stream"),
            Contender(torch.name, "torch-indexed", item="stream"),
            upstream_stateful,
        ),
        (Goal("at most 1 % for the state", "the same without a state", at_least=0.99),),
        unit="batches/s",
    ),
    batches("small", "StatefulDataLoader: start-up to first batch", "no slower than torch", kind="first_item"),
    batches("small", "StatefulDataLoader: next epoch, new workers", "no slower than torch", kind="turn_around"),
    batches(
        "small",
        "StatefulDataLoader: next epoch, persistent workers",
        "no slower than torch",
        kind="turn_around",
        persistent=True,
    ),
)

_CASES = {"plain": "a small pipeline", "large buffer": "a shuffle buffer of 18 MB", "dispatched": "dispatched items"}


def _keeping(case: str) -> Workload:
    """Measures a job with ten times the usual number of snapshots, because the cost of the usual number is too small to
    measure."""
    dense, off = Contender(OURS, "ours", {"snapshots": 10}), Contender("no snapshots", "ours", {"snapshots": 0})
    goal = Goal("ten times as many snapshots cost at most 10 %, so they cost 1 %", off.name, at_least=1 / 1.1)
    title = f"states: {_CASES[case]} runs, ten times as many snapshots"
    return Workload(f"state-cost-{case.split()[0]}", title, case, (dense, off), (goal,), "state_rate")


def _taking(case: str, kind: str, unit: str, scale: float, what: str) -> Workload:
    """Compares a `DataLoader2` over a pipeline with torch-style loaders that hold the same amount of data."""
    three = (ours, Contender("our StatefulDataLoader", "stateful"), upstream_stateful)
    name = f"{kind.replace('_', '-')}-{case.split()[0]}"
    return Workload(name, f"states: {what}, {_CASES[case]}", case, three, (), kind, unit, scale)


def _resuming(items: int) -> Workload:
    options = {"items": items}
    three = (
        Contender(OURS, "ours", options),
        Contender("our StatefulDataLoader", "stateful", options),
        Contender(upstream_stateful.name, upstream_stateful.program, options),
    )
    return Workload(
        f"resume-{items}", f"states: going on at item {items:,}", "plain", three, (), "resume_time", "ms", 1e3
    )


_RESUMED = {
    "stream": "a stream with a state",
    "index": "numbers by index",
    "file": "the lines of a file",
    "table": "the rows of an Arrow table",
}


def _resuming_late(item: str, loader: str, workers: int) -> Workload:
    """Compares the time from loading a state to the next item, at positions near the beginning of the epoch and far
    from it."""
    options = {"loader": loader, "workers": workers}
    near = Contender("at item 100", "ours", {**options, "items": 100})
    return Workload(
        f"resume-{item}-{loader}-{workers}",
        f"resume: {loader} over {_RESUMED[item]}, {workers} workers",
        item,
        (Contender(OURS, "ours", {**options, "items": 1_000_000}), near),
        (Goal("item 1,000,000 costs at most 1.2 of item 100", near.name, at_most=1.2),),
        "resume_from",
        "ms",
        1e3,
    )


RESUME = tuple(
    _resuming_late(item, loader, workers)
    for item in _RESUMED
    for loader in ("DataLoader2", "StatefulDataLoader", "nodes")
    for workers in (0, 2)
)

STATES = (
    *map(_keeping, _CASES),
    *(_taking(case, "state_time", "µs", 1e6, "taking one") for case in ("plain", "large buffer")),
    *(_taking(case, "state_size", "KiB", 1 / 1024, "the size of one") for case in ("plain", "large buffer")),
    *map(_resuming, (1_000, 100_000)),
)


def _on_ray(item: str, title: str, *rivals: Contender, goals: tuple[Goal, ...] = ()) -> Workload:
    data = Contender("Ray Data, in order", "ray", {"how": "data"})
    contenders = (Contender(OURS, "ray", {"how": "ours"}), *rivals, data)
    return Workload(
        f"ray-{item}", f"workers on a Ray cluster of three nodes: {title}", item, contenders, goals, "ray_rate"
    )


_CHUNKS = Contender("raw Ray objects of the same bytes", "ray", {"how": "raw"})
_GENERATORS = Contender("Ray's generators", "ray", {"how": "one by one"})

ON_RAY = (
    _on_ray(
        "tiny",
        "tiny items one by one",
        _GENERATORS,
        goals=(Goal("100,000/s where Ray's generators make 4,158", _GENERATORS.name, at_least=100 / 4.158),),
    ),
    _on_ray(
        "array",
        "150 KiB arrays",
        _CHUNKS,
        _GENERATORS,
        goals=(Goal("at least 0.8 of raw objects", _CHUNKS.name, at_least=0.8),),
    ),
    _on_ray(
        "batch", "batches of 38.5 MB", _CHUNKS, goals=(Goal("at least 0.9 of raw objects", _CHUNKS.name, at_least=0.9),)
    ),
    Workload(
        "ray-first-item",
        "workers on a Ray cluster of three nodes: first item, once their actors run",
        "tiny",
        (Contender(OURS, "ray", {"how": "ours"}),),
        kind="ray_first_item",
        unit="ms",
        scale=1e3,
    ),
)

TAR = ("tarfile", "tarfile, streaming", "webdataset")

WORKLOADS = (
    Workload(
        "tiny",
        "tiny items one by one",
        "tiny",
        (
            ours,
            upstream,
            torch,
            Contender("torch, prefetch 16", "torch", {"prefetch_factor": 16}),
            Contender("torch, lists of 64", "torch", {"together": 64}),
        ),
        (
            Goal("at least 300 times upstream", upstream.name, at_least=300),
            Goal("at least 60 times torch", torch.name, at_least=60),
            Goal("600,000/s where torch moving lists makes 460,000", "torch, lists of 64", at_least=600 / 460),
        ),
    ),
    *map(crowd, (4, 16, 256)),
    in_splits("tiny", "tiny items in batches of 32", "tiny", "batched", 1.15),
    in_splits("arrays", "150 KiB arrays in batches of 32", "array", "batched", 1.05),
    in_splits("tar", "members of tar files, 100 KiB", "content", "members", 1.05),
    timed("stats", "tiny items one by one", "tiny", 0.95),
    timed("stats-arrays", "150 KiB arrays", "array", 0.97),
    Workload(
        "auto",
        'training images decoded, num_workers="auto"',
        "decoded",
        tuple(
            Contender(name, "ours", {"imports": ["numpy", "PIL"], "warm_up": SETTLING_S, **workers})
            for name, workers in ((OURS, {"workers": "auto"}), (TWO, {}))
        ),
        (Goal("at least 0.95 of the rate of 2 workers", TWO, at_least=0.95),),
    ),
    Workload(
        "mixed",
        "mixed dictionaries, 12 KiB array",
        "mixed",
        (ours, upstream, torch, torch_numpy),
        (Goal("at least 25 times torch", torch.name, at_least=25),),
    ),
    Workload(
        "arrays",
        "150 KiB arrays",
        "array",
        (ours, upstream, torch, torch_numpy, Contender("one process, no loader", "bare", kind="array_floor")),
        (Goal("at least 12 times torch", torch.name, at_least=12),),
    ),
    laid_out("flipped", "150 KiB images, mirrored"),
    laid_out("transposed", "150 KiB images, channels first"),
    laid_out("cropped", "150 KiB images, cut out of larger ones"),
    laid_out("times", "150 KiB of datetime64"),
    of_objects("shared_text", "one string of 1 MiB, 300 times in an item"),
    Workload(
        "objects",
        "1,000 dataclass objects in an item",
        "objects",
        (ours, upstream, torch, Contender("torch loaded, moved by us", "ours", {"imports": ["torch"]})),
        (Goal("no slower than torch", torch.name, at_least=1.0),),
    ),
    of_objects("hashes", "1,000 ints of 64 bits in an item"),
    of_objects("large_ints", "1,000 ints of 100 bits in an item"),
    of_objects("floats", "100,000 floats in an item"),
    of_objects("float_lists", "1,000 lists of four floats in an item"),
    of_objects("times_and_uuids", "1,000 pairs of datetime and UUID in an item"),
    Workload(
        "nodes",
        "nodes: ParallelMapper over processes, ints one by one",
        "tiny",
        (Contender(OURS, "nodes"), Contender("prebatch of 64", "nodes", {"prebatch": 64})),
        (Goal("0.4 of the rate with batches made by hand", "prebatch of 64", at_least=0.4),),
    ),
    Workload(
        "tensors",
        "150 KiB tensors",
        "tensor",
        (ours, torch, Contender("arrays, moved by us", "ours", item="array")),
        (
            Goal("at least 5 times torch", torch.name, at_least=5),
            Goal("at least 0.75 of the rate of arrays", "arrays, moved by us", at_least=0.75),
        ),
    ),
    small_ones("small_tensor", "64-byte tensors", "small_array", 0.5),
    small_ones("small_tensors", "items of 100 tensors of 64 bytes", "small_arrays", 0.2),
    Workload(
        "batches",
        "38.5 MB NumPy batches",
        "batch",
        (ours, upstream, torch, torch_numpy),
        (
            Goal("at least 4 times torch moving the same arrays, as NumPy", torch_numpy.name, at_least=4),
            Goal("at least 4 times torch moving the same arrays, as tensors", torch.name, at_least=4),
        ),
        unit="GB/s",
        scale=4 * 64 * 3 * 224 * 224 / 1e9,
    ),
    dispatching("dispatch-tiny", "dispatched tiny items", "tiny", 150, "at least 150 times upstream"),
    dispatching("dispatch-arrays", "dispatched 150 KiB arrays", "array", 6, "at least 6 times upstream"),
    Workload(
        "jpeg",
        "JPEG decoding in workers",
        "decoded",
        (ours, Contender("two bare processes", "bare", kind="decoding"), torch, upstream),
        (Goal("97 % of two bare processes", "two bare processes", at_least=0.97),),
        unit="images/s",
    ),
    Workload(
        "training-batches",
        "training batches: JPEGs decoded, resized and collated by torch's function",
        "collated",
        (Contender(OURS, "ours", {"imports": ["torch"]}), torch, Contender("spdl's threads", "spdl")),
        (
            Goal("no slower than torch", torch.name, at_least=1.0),
            Goal("no slower than spdl's threads", "spdl's threads", at_least=1.0),
        ),
        unit="images/s",
        scale=32,
    ),
    training("crops", "random crops of JPEGs of 500 x 375, to 224, as batches of bytes", "crops", 2.2),
    training("crops-large", "random crops of JPEGs of 2000 x 1500, to 224", "large crops", 2.5, fast=True),
    starting("fork", 0.5, "at most half of torch's time under fork"),
    starting("spawn", 0.25, "at most a quarter of torch's time under spawn"),
    starting_with_torch("fork"),
    starting_with_torch("spawn"),
    starting_with_torch("spawn", late=True),
    restarting("fork", 4),
    restarting("fork", 4, dispatched=True),
    restarting("spawn", 1.25),
    Workload(
        "epochs",
        "epoch turn-around, persistent workers",
        "tiny",
        (ours, Contender(torch.name, "torch", {"persistent": True}), upstream),
        (Goal("at most half of torch's time", torch.name, at_most=0.5),),
        kind="turn_around",
        unit="ms",
        scale=1e3,
    ),
    Workload(
        "epochs-torch",
        "epoch turn-around, persistent workers of a program that uses torch",
        "tiny",
        (Contender(OURS, "ours", {"imports": ["torch"]}), Contender(torch.name, "torch", {"persistent": True})),
        (Goal("less than torch's time", torch.name, at_most=1.0),),
        kind="turn_around",
        unit="ms",
        scale=1e3,
    ),
    chain("in-process", "chain of five pipes, no workers", "chain of five"),
    chain("in-process-items", "chain of six pipes that unbatches, no workers", "chain of five, per item"),
    *(
        chain(f"in-process-{case}", f"{pipe} alone, no workers", case)
        for case, pipe in (
            ("map", "Mapper"),
            ("filter", "Filter"),
            ("batch", "Batcher"),
            ("shuffle", "Shuffler"),
            ("zip", "Zipper"),
            ("enumerate", "Enumerator"),
        )
    ),
    replace(
        chain("in-process-on-error", "two Mappers whose errors are skipped, none raised, no workers", "on_error"),
        contenders=(Contender(OURS, "ours", {"case": "on_error"}),),
    ),
    *ON_RAY,
    *LOADERS,
    *RESUME,
    *STATES,
    *packing("pack-lists", "packing lists of tokens into rows of 2,048", "lists"),
    packing("pack-arrays", "packing arrays of tokens into rows of 2,048", "arrays")[0],
    reading("tar", "tar, members of 1 KiB", *TAR),
    reading("tar-large", "tar, members of 100 KiB", *TAR),
    reading("tar-gz", "tar.gz, members of 1 KiB", *TAR),
    reading("tar-gz-large", "tar.gz, members of 100 KiB", *TAR),
    reading("tfrecord", "TFRecords of small examples", "tfrecord"),
    reading("tfrecord-large", "TFRecords of examples of 100 KiB", "tfrecord"),
    reading("cache", "files that are in the disk cache", "open", least=0.3),
    reading("s3", "objects of 100 KiB from a local server of S3", "boto3"),
)
