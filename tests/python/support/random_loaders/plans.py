"""Plans: what a seed stands for. A graph and its model, the options of the loader, what main does in each epoch."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import islice

from random_loaders import graphs
from random_loaders.items import Fail, Inflate, Keep, Outputs, Provoked, Work

METHODS = ("fork", "spawn", "forkserver")

#: Most that an epoch may cost, in seconds of sleep; most payload, and most items.
SECONDS, BYTES, ITEMS = 1.2, 40 << 20, 5000
#: Seconds of sleep after which no further epoch is planned.
ENOUGH = 4.0

#: How often each kind of pipe is drawn.
WEIGHTS = {
    "work": 8,
    "flatmap": 4,
    "filter": 3,
    "batch": 3,
    "unbatch": 3,
    "inflate": 4,
    "prefetch": 3,
    "shuffle": 1.5,
    "header": 0.7,
    "cycle": 1,
    "fork": 0.5,
    "fail": 1.5,
}


class TooMuch(Exception):
    """The graph costs more than a run should."""


@dataclass
class Expected:
    """The items of an epoch if nothing cuts it short."""

    items: list
    #: The worker that sends each item; empty where main changes them.
    workers: list[int]
    #: Whether it ends in an error of a function that the plan has armed.
    raises: bool
    #: Roughly, what it takes.
    seconds: float


@dataclass
class Setup:
    """A loader: its graph and its options."""

    graph: graphs.Node
    #: The graph that stays in main, over a `Collected`; None if nothing does.
    main: graphs.Node | None
    method: str
    workers: int
    options: dict
    #: Whether the order of items, and what is in a batch, follow from the model.
    exact: bool
    fails: list[graphs.Failing] = field(default_factory=list)
    #: Whether the loader's functions of pause, resume and limit do something.
    functions: bool = False
    #: Whether workers are often busy with an item when their epoch is left.
    hurried: bool = False

    def expected(self, armed=None):
        """Runs the model."""
        workers, owners = self.workers, []
        shares = [[] for _ in range(workers)]
        dispatched = [node for node in self.graph.walk() if isinstance(node, graphs.Dispatched)]
        places = [graphs.Place(armed=armed)]
        if dispatched:
            shares, place = graphs.dealt(dispatched[0], workers, armed)
            places.append(place)
        places += [graphs.Place(i, workers, shares[i], armed) for i in range(workers)]

        def stream():
            streams = [self.graph.model(place) for place in places[-workers:]]
            for worker, item in graphs.collected(streams):
                owners.append(worker)
                yield item

        items, raises = [], False
        if self.main is not None:
            collected = next(node for node in self.main.walk() if isinstance(node, graphs.Collected))
            collected.options["stream"] = stream
        try:
            for item in islice(self.main.model(places[0]) if self.main else stream(), ITEMS + 1):
                items.append(item)
        except Provoked:
            raises = True
        # Where all wait for all, a worker waits for the dispatching process, and main for the worker.
        *others, slowest = sorted(place.seconds for place in places)
        seconds = slowest + (others[-1] if others else 0)
        if len(items) > ITEMS or seconds > SECONDS or sum(place.bytes for place in places) > BYTES:
            raise TooMuch
        return Expected(items, owners if self.main is None else [], raises, seconds)

    def describe(self):
        lines = [f"{self.method}, {self.workers} workers, {self.options}, exact={self.exact}"]
        if self.functions:
            lines.append("pause_fn, resume_fn and limit_fn do something")
        lines.append(repr(self.graph))
        if self.main is not None:
            lines.append("in main:\n" + repr(self.main))
        return "\n".join(lines)


@dataclass
class Action:
    """The acts of main in one epoch."""

    #: Items to take; None for all.
    take: int | None = None
    #: Longest sleep of main after an item, and after the epoch.
    slow: float = 0.0
    rest: float = 0.0
    #: Items after which the loader pauses, and how long it stays paused.
    limit: int | None = None
    paused: float = 0.0
    #: Number of the function that fails.
    armed: int | None = None
    #: Seed to set before.
    seed: int | None = None
    #: Whether the iterator is dropped, not kept until the next one is made.
    drop: bool = False
    #: Items to take from an iterator that the real one makes invalid.
    before: int | None = None
    #: Whether another thread iterates.
    thread: bool = False
    #: Whether the other loader of the plan is read in between.
    both: bool = False
    #: How many items to keep until the loader is shut down.
    keep: int = 0


@dataclass
class Plan:
    """All that a seed stands for."""

    seed: int
    setup: Setup
    other: Setup | None
    actions: list[Action]
    #: Seconds between two timer signals that main handles; 0 for none.
    timer: float
    #: How the loader ends: "shutdown", "midway" (in the middle of an epoch), or "dropped" there.
    ending: str

    def describe(self):
        parts = [f"plan {self.seed}: {self.setup.describe()}"]
        if self.other is not None:
            parts.append(f"the other loader: {self.other.describe()}")
        if self.timer:
            parts.append(f"a timer signal every {self.timer * 1000:.1f} ms")
        if self.ending != "shutdown":
            parts.append(f"in the end the loader is {self.ending.replace('midway', 'shut down midway')}")
        default = vars(Action())
        for number, action in enumerate(self.actions):
            said = {name: value for name, value in vars(action).items() if value != default[name]}
            parts.append(f"epoch {number}: {said or 'all of it'}")
        return "\n".join(parts)


def make_plan(seed, methods=METHODS):
    """The plan of a seed. `methods` are the start methods to draw from."""
    rng = random.Random(f"plan {seed}")
    method = methods[rng.randrange(60) % len(methods)]
    setup = _setup(rng, method)
    other = _setup(rng, method, small=True) if rng.random() < 0.15 else None
    expected = setup.expected()
    actions, seconds = [], 0.0
    for _ in range(rng.randint(2, 5)):
        action = _action(rng, setup, other, len(expected.items))
        if actions and actions[-1].take and rng.random() < (0.9 if setup.hurried else 0.6):
            action.take = None  # what an epoch that was left does to the next one shows best in a whole one
        elif setup.hurried:
            action.take, action.slow, action.rest = rng.choice([1, 1, 2, 5]), 0.0, 0.0
        actions.append(action)
        seconds += expected.seconds + action.slow * len(expected.items) / 2
        if seconds > ENOUGH:
            break
    else:
        actions += [Action()] * rng.randrange(2)
    timer = rng.uniform(0.001, 0.02) if rng.random() < 0.2 else 0.0
    ending = rng.choice(["shutdown", "shutdown", "midway", "dropped"])
    return Plan(seed, setup, other, actions, timer, ending)


def _action(rng, setup, other, length):
    action = Action()
    some = rng.random
    if some() < 0.5:
        action.take = min(length, int(length * rng.random() ** 3) + (some() < 0.9))
        action.drop = some() < 0.4
    if some() < 0.25:
        action.slow = min(0.02, 1.5 / (length + 1))
    if some() < 0.3:
        action.rest = rng.uniform(0, 0.1)
    if setup.fails and some() < 0.6:
        action.armed = rng.randrange(len(setup.fails))
    if some() < 0.3:
        action.seed = rng.randrange(2)
    if some() < (0.6 if setup.functions else 0.2):
        action.limit = rng.randint(max(1, length // 8), length + 5)
        action.paused = rng.choice([0, 0.001, 0.03])
    if some() < 0.15 and action.armed is None and action.seed is None:
        action.before = rng.randrange(0, min(length, 30) + 1)
    if some() < 0.15:
        action.thread = True
    if other is not None and some() < 0.5 and not action.thread:
        action.both = True
    if some() < 0.3:
        action.keep = rng.randint(1, 40)
    return action


# -- graphs --------------------------------------------------------------------------------------------------------


def _setup(rng, method, small=False):
    while True:
        setup = _candidate(rng, method, small)
        try:
            # Once to find out which keys come past the functions that may fail, and what it costs.
            items = setup.expected().items
        except TooMuch:
            continue
        for node in setup.fails:
            seen = node.options.pop("seen")
            node.function.key = rng.choice(seen) if seen else -1
        if items or rng.random() < 0.1:
            return setup


def _candidate(rng, method, small):
    workers = rng.choice([1, 2, 2, 2, 3, 3, 4])
    in_order = rng.random() < 0.75
    draft = _Draft(rng, workers, small)
    if rng.random() < 0.65:
        graph = draft.dispatched()
    else:
        graph = draft.replicated()
    main = draft.in_main() if rng.random() < 0.3 else None
    options = {
        "worker_prefetch_cnt": rng.choice([0, 1, 2, 3, 10, 10, 20]),
        "main_prefetch_cnt": rng.choice([0, 1, 2, 3, 10, 10, 20]),
        "in_order": in_order,
        "memory_budget": rng.choice([None, None, 1 << 16, 1 << 20, 16 << 20]),
        "timeout": rng.choice([None, None, 30.0]),
    }
    exact = not draft.shuffled and options["in_order"]
    functions = rng.random() < 0.1
    return Setup(graph, main, method, workers, options, exact, draft.fails, functions, draft.hurried)


class _Draft:
    """A graph while it is drawn, and what restricts the pipes that may still come.

    Behind a shuffle the content of batches and rows does not follow from the model, so nothing may depend on it. The
    same holds in main for what arrives in any order, but there only elementwise pipes come after a batch.
    """

    def __init__(self, rng, workers, small):
        self.rng, self.workers, self.small = rng, workers, small
        self.shuffled = False
        self.fails = []
        self.sources = 0
        self.flatmaps = 0
        self.hurried = False

    def source(self):
        rng = self.rng
        count = rng.choice([0, 1, 5]) if rng.random() < 0.05 else rng.randint(10, 60 if self.small else 250)
        kind = graphs.Source if rng.random() < 0.8 else graphs.Plain
        self.sources += 1
        return _Branch(kind(start=self.sources * 100_000, count=count))

    def dispatched(self):
        rng = self.rng
        branch = self.grow(self.source(), rng.randint(0, 3), "dispatching")
        if rng.random() < 0.2:
            branch = self.join(branch, self.grow(self.source(), rng.randint(0, 2), "dispatching"))
        elif rng.random() < 0.1 and not branch.shape:
            self.fork(branch, "dispatching")  # one of the two is marked; both are dispatched
        branch.put(graphs.Dispatched)
        if rng.random() < 0.3:
            self.hurried = True
            branch.put(graphs.Working, function=Work(self.salt(), 0, 10, rng.uniform(0.05, 0.15)))
        branch = self.grow(branch, rng.randint(0, 4), "worker")
        if rng.random() < 0.15:
            branch = self.join(branch, self.replicated_branch())
            branch = self.grow(branch, rng.randint(0, 2), "worker")
        self.branch = branch
        return branch.node

    def replicated(self):
        rng = self.rng
        branch = self.replicated_branch()
        if rng.random() < 0.15:
            branch = self.join(branch, self.replicated_branch())
            branch = self.grow(branch, rng.randint(0, 2), "worker")
        self.branch = branch
        return branch.node

    def replicated_branch(self):
        rng = self.rng
        branch = self.grow(self.source(), rng.randint(0, 2), "worker")
        if rng.random() < 0.9:
            branch.put(graphs.Shard)
        return self.grow(branch, rng.randint(0, 4), "worker")

    def in_main(self):
        rng, branch = self.rng, self.branch
        branch.node = graphs.Collected()
        if rng.random() < 0.6:
            branch.put(graphs.Pinned, function=self.effort("main"))
        else:
            branch.put(graphs.Stayed)
        return self.grow(branch, rng.randint(0, 2), "main").node

    def join(self, first, second):
        kinds = [graphs.Concatenated, graphs.MuxedLongest]
        if not self.shuffled:
            kinds += [graphs.Zipped, graphs.Zipped, graphs.Muxed]
        kind = self.rng.choice(kinds)
        joined = _Branch(kind(first.node, second.node))
        joined.inflated = first.inflated or second.inflated
        joined.shape = ["row"] if kind is graphs.Zipped else []
        if kind is not graphs.Zipped and (first.shape or second.shape):
            joined.shape = first.shape if first.shape == second.shape else ["mixed"]
        return joined

    def grow(self, branch, count, where):
        for _ in range(count):
            possible = {kind: weight for kind, weight in WEIGHTS.items() if self.fits(kind, branch, where)}
            kind = self.rng.choices(list(possible), list(possible.values()))[0]
            getattr(self, kind)(branch, where)
        return branch

    def fits(self, kind, branch, where):
        """Whether the model holds where a pipe of this kind comes next."""
        loose = self.shuffled or where == "main"  # where the order does not count
        if kind in ("flatmap", "filter", "fail"):
            return not (branch.shape and loose) and (kind != "flatmap" or self.flatmaps < 2)
        if kind == "unbatch":
            return branch.shape[-1:] == ["batch"]
        if kind == "inflate":
            return not branch.shape and not branch.inflated
        if kind in ("batch", "fork"):
            return not (loose and branch.shape)
        if kind == "header":
            return not loose
        return True

    def salt(self):
        return self.rng.randrange(1 << 30)

    def effort(self, where):
        rng = self.rng
        every = rng.choice([0, 0, 7, 10, 25]) if where != "main" else 0
        short = rng.choice([0, 0, 0.0005, 0.002, 0.005])
        return Work(self.salt(), short, every, rng.uniform(0.02, 0.1))

    def work(self, branch, where):
        branch.put(graphs.Working, function=self.effort(where))

    def flatmap(self, branch, _where):
        function = Outputs(self.salt(), self.rng.choice([0.5, 1.0, 1.5, 2.0]), self.rng.choice([3, 20, 60]))
        branch.put(graphs.FlatMapped, function=function)
        branch.shape, branch.inflated = [], False
        self.flatmaps += 1

    def filter(self, branch, _where):
        modulus = self.rng.choice([0, 0, 2, self.workers])
        branch.put(graphs.Filtered, function=Keep(self.salt(), self.rng.choice([0.1, 0.5, 0.9]), modulus))

    def batch(self, branch, where):
        loose = self.shuffled or where == "main"
        branch.put(
            graphs.Batched,
            size=self.rng.choice([1, 2, 4, 8, 25]),
            drop_last=not loose and self.rng.random() < 0.2,
        )
        branch.shape = [*branch.shape, "batch"]

    def unbatch(self, branch, _where):
        branch.put(graphs.Unbatched)
        branch.shape = branch.shape[:-1]

    def inflate(self, branch, where):
        rng = self.rng
        form = rng.choice(["array", "array", "empty", "empty", "dict", "many", "strided", "text", "bytes"])
        largest = rng.choice([10, 2000, 20_000, 100_000, 500_000])
        threads = rng.choice([0, 0, 1, 2]) if where != "main" else 0
        branch.put(graphs.Inflated, function=Inflate(self.salt(), form, largest), threads=threads)
        branch.inflated = True

    def prefetch(self, branch, _where):
        branch.put(graphs.Prefetched, size=self.rng.choice([1, 2, 10, 100]))

    def shuffle(self, branch, _where):
        branch.put(graphs.Shuffled, size=self.rng.choice([2, 10, 1000]))
        self.shuffled = True

    def header(self, branch, _where):
        branch.put(graphs.Headed, size=self.rng.randint(1, 60))

    def cycle(self, branch, _where):
        branch.put(graphs.Cycled, count=2)

    def fork(self, branch, _where):
        branch.put(graphs.Forked)
        branch.shape = ["row"]

    def fail(self, branch, where):
        kinds = ["error", "odd", "exit"] if where != "main" else ["error"]
        function = Fail(self.salt(), None, None, self.rng.choice(kinds))
        number = len(self.fails)
        branch.put(graphs.Failing, function=function, number=number, seen=[])
        self.fails.append(branch.node)


class _Branch:
    """A part of a graph, by its last pipe."""

    def __init__(self, node):
        self.node = node
        #: From the inside: "batch" and "row", or "mixed".
        self.shape = []
        self.inflated = False

    def put(self, kind, **options):
        self.node = kind(self.node, **options)
