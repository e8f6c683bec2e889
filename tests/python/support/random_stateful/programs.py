"""Draws random programs, describes the programs, and explains why some programs cannot resume exactly."""

import random
from dataclasses import dataclass, field
from typing import Any

from random_stateful import datasets, orders

#: From this seed on, some samples of map-style datasets are broken, and are skipped.
SKIPPING = 1_000_000
#: From this seed on, some items of iterable datasets are broken, and are skipped.
SKIPPING_STREAMS = 2_000_000
#: From this seed on, the resumed run has a different batch size.
RESIZING = 3_000_000
AFTER = 3

CATEGORIES = (
    "map style",
    "iterable without workers",
    "iterable with workers",
    "iterable with persistent workers",
    "orders without a generator",
    "random draws",
    "another number of workers",
)


@dataclass
class Program:
    seed: int
    dataset: str
    length: int
    draws: str
    slow: bool
    sampler: str
    batch_size: int | None
    workers: int
    later_workers: int
    generator: bool
    options: dict[str, Any] = field(default_factory=dict)
    broken: tuple[int, ...] = ()
    later_batch: int | None = None
    #: The seed of the resumed program: the seed of the first program ("same"), another seed ("another"), or "none".
    seeds: str = "same"
    #: How many random numbers the program draws before its loader, in each training step, and after each epoch.
    draws_before: int = 0
    draws_in_step: int = 0
    draws_after_epoch: int = 0
    draws_more: int = 0
    seeds_epochs: bool = False
    breaks: dict[int, int] = field(default_factory=dict)
    stop_epoch: int = 0
    #: When the program stops: after a number of batches, "before" the epoch, after its "last" batch, or at its "end".
    stop_at: int | str = 0
    peeks: tuple[int, ...] = ()
    way: str = "torch"
    #: Whether the state is loaded and saved by another process before the last process resumes.
    relayed: bool = False
    compared_with_torch: bool = False

    @property
    def indexed(self) -> bool:
        return datasets.BY_NAME[self.dataset] in datasets.MAPS

    @property
    def persistent(self) -> bool:
        return bool(self.options.get("persistent_workers"))

    @property
    def in_order(self) -> bool:
        return self.workers == 0 or bool(self.options.get("in_order", True))

    @property
    def noisy(self) -> bool:
        return "Noisy" in self.dataset or (bool(self.draws) and not self.indexed)

    @property
    def free_order(self) -> bool:
        return self.sampler in orders.FREE and not (self.sampler == "shuffle" and self.generator)

    @property
    def epochs(self) -> int:
        return self.stop_epoch + 1 + AFTER

    @property
    def category(self) -> str:
        if self.later_workers != self.workers:
            return "another number of workers"
        if self.noisy:
            return "random draws"
        if self.free_order:
            return "orders without a generator"
        if self.indexed:
            return "map style"
        if self.workers == 0:
            return "iterable without workers"
        return "iterable with persistent workers" if self.persistent else "iterable with workers"

    @property
    def has_torch_s_order(self) -> bool:
        stateless = self.dataset in ("Indexed", "AtOnce", "Noisy", "Plain") and self.sampler not in orders.STATEFUL
        return stateless and self.in_order and not self.breaks and self.seeds != "none" and not self.broken

    @property
    def is_shared_again(self) -> bool:
        return not self.indexed and self.later_workers != self.workers

    def later_workers_matter(self, first: int) -> bool:
        resumes = self.sampler in orders.RESUMING and self.later_workers != self.workers
        return resumes and any(epoch >= first for epoch in self.breaks)

    def unknowable(self, over: bool) -> str:
        """Returns the reason why this program may yield other items after a resume, or "" if it may not."""
        if self.dataset == "OwnNoise":
            return "the dataset draws from its own generator, but has no state"
        if self.dataset == "PlainEpochs" and (self.workers == 0 or self.persistent):
            return "the dataset counts its epochs, but has no state"
        if self.sampler == "user's, counts epochs":
            return "the sampler counts its epochs, but has no state"
        if self.dataset in ("Counting", "Noisy", "NoisyCounting", "OwnNoiseKept") and not self.in_order:
            return "with in_order=False, the timing decides which worker reads a sample"
        if (over or self.stop_at == "before") and self.is_shared_again:
            return "another number of workers divides the dataset from the next epoch on"
        if over and self.draws_after_epoch and (self.free_order or self.noisy) and not self.seeds_epochs:
            return "only the uninterrupted run draws from the global generators before its next epoch"
        if len(self.breaks) > 1 and self.later_workers_matter(self.stop_epoch + over):
            return "no single run leaves epochs with both numbers of workers"
        return ""

    def words(self) -> str:
        parts = [f"{self.dataset}({self.length}{', draws: ' + self.draws if self.noisy else ''})"]
        if self.slow:
            parts.append("slow items")
        if self.indexed:
            parts.append(f"sampler: {self.sampler}")
        if self.broken:
            parts.append(f"skips {list(self.broken)}")
        if self.generator:
            parts.append("generator given")
        later = "" if self.later_batch is None else f" then {self.later_batch}"
        parts.append(f"batch_size={self.batch_size}{later}")
        parts.append(f"workers={self.workers}" + (f" then {self.later_workers}" * (self.later_workers != self.workers)))
        parts += [f"{name}={value}" for name, value in self.options.items()]
        parts.append(f"seeds: {self.seeds}" + ", anew in each epoch" * self.seeds_epochs)
        for name in ("draws_before", "draws_in_step", "draws_after_epoch", "draws_more"):
            if getattr(self, name):
                parts.append(f"{name}={getattr(self, name)}")
        parts += [f"break in epoch {epoch} after {count}" for epoch, count in self.breaks.items()]
        parts.append(f"state in epoch {self.stop_epoch} at {self.stop_at}")
        if self.peeks:
            parts.append(f"looks at the state before {list(self.peeks)}")
        parts.append(f"by {self.way}" + ", relayed" * self.relayed)
        return "; ".join(parts)


def program_of(seed: int) -> Program:
    chance = random.Random(seed)
    indexed = chance.random() < 0.6 or seed >= SKIPPING
    if SKIPPING_STREAMS <= seed < RESIZING:
        indexed, dataset, sampler = False, chance.choice(datasets.LASTING_STREAMS), "in order"
    elif indexed:
        dataset = chance.choices(datasets.MAPS, [6, 2, 3, 2, 1, 0.3, 1])[0]
        sampler = chance.choice(list(orders.SAMPLERS))
    else:
        dataset = chance.choices([*datasets.STATELESS_STREAMS, *datasets.STREAMS], [4, 0.5] + [2] * 8)[0]
        sampler = "in order"
    batch_size = chance.choice([None, 1, 2, 3, 5])
    workers = chance.choice([0, 0, 1, 2, 2, 3])
    program = Program(
        seed=seed,
        dataset=dataset.__name__,
        length=chance.choice([0, 1, 2, 3]) if chance.random() < 0.1 else chance.randrange(4, 30),
        draws=chance.choice(datasets.DRAWS) if indexed or chance.random() < 0.15 else "",
        slow=workers > 0 and chance.random() < 0.3,
        sampler=sampler,
        batch_size=batch_size,
        workers=workers,
        later_workers=workers,
        generator=chance.random() < 0.3,
    )
    if sampler != "in order":
        program.length = max(program.length, 1)  # torch's samplers refuse empty datasets.
    choose_options(program, chance)
    choose_habits(program, chance)
    choose_moment(program, chance)
    choose_way(program, chance)
    if seed >= RESIZING:
        choose_size(program, chance)
    elif seed >= SKIPPING:
        choose_broken(program, chance)
    return program


def choose_options(program: Program, chance: random.Random) -> None:
    if program.batch_size is not None and "atch" not in program.sampler and chance.random() < 0.2:
        program.options["drop_last"] = True
    if chance.random() < 0.25:
        program.options["snapshot_every_n_steps"] = chance.choice([2, 3, 7])
    if program.workers:
        program.options["prefetch_factor"] = chance.choice([1, 2, 2, 3])
        program.options["persistent_workers"] = chance.random() < 0.5
        if chance.random() < 0.1:
            program.options["in_order"] = False


def choose_habits(program: Program, chance: random.Random) -> None:
    program.seeds = chance.choices(["same", "another", "none"], [6, 2, 1])[0]
    if chance.random() < 0.5:
        program.draws_before = chance.randrange(4)
        program.draws_in_step = chance.choice([0, 0, 1, 2])
        program.draws_after_epoch = chance.choice([0, 0, 0, 3])
        program.draws_more = chance.choice([0, 0, 2])
    program.seeds_epochs = chance.random() < 0.08


def choose_moment(program: Program, chance: random.Random) -> None:
    program.stop_epoch = chance.choice([0, 0, 0, 1, 1, 2, 3])
    program.stop_at = chance.choice(["before", 0, 1, 1, 2, 3, 4, 6, 9, "last", "end", "end"])
    if program.stop_epoch and program.in_order and chance.random() < 0.35:
        program.breaks[program.stop_epoch - 1] = chance.choice([1, 2, 3, 5])
        if program.stop_at == "before":  # The state would belong to the epoch that the loop has left.
            program.stop_at = 0
    if program.in_order and chance.random() < 0.1:
        program.breaks[program.stop_epoch + 1] = chance.choice([1, 2, 4])
    if chance.random() < 0.25:
        program.peeks = tuple(sorted(chance.sample(range(10), chance.choice([1, 3, 5]))))


def choose_broken(program: Program, chance: random.Random) -> None:
    numbers = range(program.length)
    share = chance.choice([0.1, 0.3, 0.6, 1.0 if program.length < 8 else 0.9])
    broken = {number for number in numbers if chance.random() < share}
    if chance.random() < 0.5:
        first = chance.randrange(program.length + 1)
        broken |= set(numbers[first : first + 2 * (program.batch_size or 1)])
    program.broken = tuple(sorted(broken))


def choose_size(program: Program, chance: random.Random) -> None:
    program.dataset = chance.choice(["Indexed", "AtOnce"])
    if "atch" in program.sampler:
        program.sampler = "shuffle"
    program.length = max(program.length, 1)
    program.batch_size, program.later_batch = chance.choice([1, 2, 3, 5]), chance.choice([1, 2, 3, 4, 7])
    program.draws_in_step, program.compared_with_torch = 0, False
    for name in ("drop_last", "in_order"):
        program.options.pop(name, None)
    program.breaks = {epoch: count for epoch, count in program.breaks.items() if epoch < program.stop_epoch}


def choose_way(program: Program, chance: random.Random) -> None:
    program.way = chance.choice(["json", "torch", "torch", "pickle"])
    program.relayed = chance.random() < 0.12
    program.compared_with_torch = chance.random() < 0.3
    stateless = program.dataset in ("Indexed", "AtOnce")
    if stateless and program.workers and chance.random() < 0.2:
        program.later_workers = chance.choice([1, 2, 3, 4])
    if not program.indexed and program.workers and chance.random() < 0.3:
        program.later_workers = chance.choice([0, 1, 2, 3, 4])
