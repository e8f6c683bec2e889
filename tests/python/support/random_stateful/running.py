"""Runs a program in a separate process: the whole program, the part before its stop, or the part after its stop."""

import gc
import io
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy
import torch

from random_stateful import datasets, orders
from random_stateful.exits import HANGS_AFTER, Exits
from random_stateful.programs import Program, program_of


def plain(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(one) for one in batch] if isinstance(batch, (list, tuple)) else batch


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)


def draw(count: int) -> None:
    for _ in range(count):
        datasets.drawn("all")


def written(state: Any, way: str) -> bytes:
    if way == "json":
        return json.dumps(state).encode()
    if way == "pickle":
        return pickle.dumps(state)
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def read(data: bytes, way: str) -> Any:
    if way == "json":
        return json.loads(data)
    if way == "pickle":
        return pickle.loads(data)
    return torch.load(io.BytesIO(data), weights_only=True)


def save(loader: Any, program: Program, path: Path) -> dict[str, Any]:
    state, again = loader.state_dict(), loader.state_dict()
    known: dict[str, Any] = {"keys": sorted(state)}
    try:
        known["alike"] = bool(state == again)
    except (RuntimeError, ValueError):  # `==` cannot compare states with tensors or arrays.
        known["alike"] = False
    try:
        text = json.dumps(state)
        kept = json.loads(text)
        if "_torchdata_rs" in kept:
            kept["_torchdata_rs"] = tuple(kept["_torchdata_rs"])
        known["json"], known["size"] = bool(kept == state), len(text)
        known["alike"] = known["alike"] and json.dumps(again) == text
        way = program.way
    except TypeError as error:
        known["json"], known["size"] = False, len(pickle.dumps(state))
        known["why"] = str(error)
        way = "torch" if program.way == "json" else program.way
    path.write_bytes(way.encode() + b"\n" + written(state, way))
    return known


def load(loader: Any, path: Path) -> None:
    way, _, data = path.read_bytes().partition(b"\n")
    loader.load_state_dict(read(data, way.decode()))


def run(seed: int, phase: str, **options: Any) -> dict[str, Any]:
    return Run(program_of(seed), phase, **options).run()


class Run:
    """Runs one phase of a program. In the phases "whole" and "torch", the program runs all epochs. In "stop", the
    program saves a state, in "relay" it loads and saves a state, and in "resume" it loads a state."""

    def __init__(
        self,
        program: Program,
        phase: str,
        batches: int = 0,
        source: str | None = None,
        target: str | None = None,
        first: int = 0,
        exits: int | None = None,
        method: str = "fork",
        workers: int | None = None,
    ) -> None:
        self.program, self.phase, self.batches, self.first = program, phase, batches, first
        self.method, self.exits = method, None if exits is None else Exits(exits)
        self.source, self.target = source, target
        self.resumed = phase in ("relay", "resume")
        self.workers = workers
        if workers is None:
            self.workers = program.later_workers if self.resumed else program.workers
        self.known: dict[str, Any] = {}
        self.epochs: list[list[Any]] = []
        self.skipped: list[Any] = []

    def loader(self) -> Any:
        if self.phase == "torch":
            from torch.utils.data import DataLoader as Loader
        else:
            from torchdata.stateful_dataloader import StatefulDataLoader as Loader  # type: ignore[assignment]
        program = self.program
        options = dict(program.options)
        workers = self.workers
        if workers == 0:
            for name in ("persistent_workers", "prefetch_factor", "in_order"):
                options.pop(name, None)
        else:
            options["multiprocessing_context"] = self.method
            if self.exits is not None:
                options |= {"on_worker_exit": "restart", "on_timeout": "restart", "timeout": HANGS_AFTER}
        if self.phase == "torch":
            options.pop("snapshot_every_n_steps", None)
        chosen = orders.SAMPLERS[program.sampler](program.length, program.batch_size or 1)
        if "batch_sampler" not in chosen:
            options["batch_size"] = program.batch_size
            if self.resumed and program.later_batch is not None:
                options["batch_size"] = program.later_batch
        if program.generator:
            options.setdefault("generator", orders.seeded(21))
        dataset = datasets.BY_NAME[program.dataset](program.length, program.draws)
        dataset.slow, dataset.uneven = program.slow, not program.in_order
        if self.exits is not None and workers:
            dataset.hanging = self.exits.hanging()
        if program.broken:
            dataset.broken = frozenset(program.broken)
            options["on_error"] = "skip"
        return Loader(dataset, num_workers=workers, **{**options, **chosen})

    def run(self) -> dict[str, Any]:
        try:
            self.train()
        finally:
            gc.collect()
        if self.exits is not None:
            self.exits.close()
        self.known["exits"] = 0 if self.exits is None else self.exits.count
        return {"epochs": self.epochs, "known": self.known, "skipped": self.skipped}

    def train(self) -> None:
        program = self.program
        if program.seeds == "none":
            seed_all(int.from_bytes(os.urandom(4), "little"))
        else:
            seed_all(42 if program.seeds == "same" or not self.resumed else 43)
        draw(program.draws_before)
        loader = self.loader()
        if self.resumed:
            draw(program.draws_more)
            assert self.source is not None
            load(loader, Path(self.source))
            if self.phase == "relay":
                self.save(loader)
                return
            draw(program.draws_more)
        for epoch in range(self.first, program.epochs):
            if self.epoch(loader, epoch):
                return
            draw(program.draws_after_epoch)

    def save(self, loader: Any) -> None:
        assert self.target is not None
        self.known = save(loader, self.program, Path(self.target))

    def epoch(self, loader: Any, epoch: int) -> bool:
        program = self.program
        stops = self.phase == "stop" and epoch == program.stop_epoch
        if stops and program.stop_at == "before":
            stops = False
            if self.stop(loader, taken=0, over=False):
                return True
        if program.seeds_epochs:
            seed_all(1000 + epoch)
        if "set_epoch" in program.sampler:
            loader.sampler.set_epoch(epoch)
        stop_after = self.batches if program.stop_at == "last" else program.stop_at
        batches: list[Any] = []
        self.epochs.append(batches)
        iterator = iter(loader)
        while True:
            if self.exits is not None:
                self.exits.may_come(loader, epoch)
            if stops and stop_after == len(batches):
                stops = False
                if self.stop(loader, taken=len(batches), over=False):
                    return True
            if self.phase == "stop" and len(batches) in program.peeks:
                loader.state_dict()
            try:
                batch = next(iterator)
            except StopIteration:
                break
            batches.append(plain(batch))
            draw(program.draws_in_step)
            if program.breaks.get(epoch) == len(batches):
                break
        if program.broken:
            self.skipped.append(loader.state_dict()["_torchdata_rs"][0]["skipped"])
        return stops and self.stop(loader, taken=len(batches), over=True)

    def stop(self, loader: Any, taken: int, over: bool) -> bool:
        """Saves a state, and returns whether the program has seeds, so that later runs yield the same items."""
        self.save(loader)
        self.known.update(taken=taken, over=over)
        if self.exits is not None:
            self.exits.stop()
        return self.program.seeds != "none"
