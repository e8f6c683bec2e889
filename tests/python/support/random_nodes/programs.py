"""Draws programs that leave epochs early, and save states of nodes."""

import random
from dataclasses import dataclass, field

from random_nodes.graphs import Graph

AFTER = 3


@dataclass
class Program:
    seed: int
    processes: bool = False
    common: bool = False
    in_order: bool = True
    bare: bool = False
    stop_epoch: int = 0
    breaks: dict[int, int] = field(default_factory=dict)
    #: Positions where states are saved, as fractions of an epoch: 0 is its beginning, and 1 is its end.
    resumed: tuple[float, ...] = ()
    #: The number of items that a loader has yielded before it loads the state, or -1 for a new loader.
    used: int = -1
    #: The number of items after which a resumed loader saves a second state, or -1 for no second state.
    link: int = -1

    @property
    def epochs(self) -> int:
        return self.stop_epoch + 1 + AFTER

    def graph(self, threads: bool = True) -> Graph:
        return Graph(
            self.seed,
            processes=self.processes,
            in_order=self.in_order,
            common=self.common,
            bare=self.bare,
            threads=threads,
        )

    def words(self, graph: Graph) -> str:
        parts = [" ".join(graph.words)]
        parts += [f"break in epoch {epoch} behind {count}" for epoch, count in self.breaks.items()]
        if not self.bare:
            parts.append(f"states in epoch {self.stop_epoch}")
        if self.used >= 0:
            parts.append(f"loaded behind {self.used} items")
        if self.link >= 0:
            parts.append(f"saved and loaded again {self.link} items later")
        return "; ".join(parts)


def program_of(seed: int, processes: bool = False) -> Program:
    chance = random.Random(f"program {seed}")
    program = Program(seed, processes, common=seed % 2 == 0, in_order=seed % 5 != 0, bare=seed % 7 == 0)
    program.stop_epoch = chance.choice([0, 0, 1, 1, 2])
    if program.stop_epoch and chance.random() < 0.6:
        program.breaks[program.stop_epoch - 1] = chance.choice([1, 1, 2, 3, 5])
    if chance.random() < 0.3:
        program.breaks[program.stop_epoch + 1] = chance.choice([1, 2, 4])
    program.resumed = (0.0, 1.0, *(chance.random() for _ in range(2)))
    if chance.random() < 0.3:
        program.used = chance.randint(0, 3)
    if chance.random() < 0.3:
        program.link = chance.randint(0, 2)
    return program
