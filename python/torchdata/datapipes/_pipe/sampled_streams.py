"""Reads a stream that can neither seek nor save its state. To resume, the items up to the saved position are reread.

A resumed run compares checksums of sampled items with the original run, to detect a stream that yields other items.

A stream may draw from the global random generators in order to shuffle or to augment. If a stream draws numbers, its
saved state contains the states that the generators had before the stream first drew numbers. A resumed run restores the
generators, rereads the items, and raises an error if the items differ from the original items. If the stream probably
draws numbers for each item, as for augmentation, a difference only causes a warning, because other code may have drawn
numbers between the items of the original run. A stream that only shuffles draws its numbers before its first item, so a
stream that draws numbers for its second item probably draws numbers for each item. If the reread items differ from the
original items only in floating-point numbers and arrays, the stream probably draws numbers for each item, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from torchdata._reporting import warn_outside
from torchdata._stateful import raise_error
from torchdata.datapipes._pipe.state.generators import load_generators, save_generators
from torchdata.datapipes._pipe.witnessing import SampleDigest

_END: Any = object()


class SampledStream:
    """Reads a stream, and resumes from `saved`, a state that `SampledStream.state` returned; None begins a new
    iteration."""

    def __init__(self, name: str, saved: dict[str, Any] | None = None) -> None:
        self._name = name
        saved = saved or {}
        self._digest = SampleDigest.of(saved["digest"]) if "digest" in saved else SampleDigest()
        #: The states of the global random generators before the stream first drew numbers; None if the stream has not
        #: drawn any.
        self._generators: dict[str, Any] | None = saved.get("generators")
        #: Whether the stream probably draws random numbers for each item, because it drew numbers for its second item.
        self._draws = bool(saved.get("draws", False))
        self._has_saved = "digest" in saved

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"digest": self._digest.as_tuple()}
        if self._generators is not None:
            state |= {"generators": self._generators, "draws": self._draws}
        return state

    def read(
        self,
        make: Callable[[], Iterator[Any]],
        position: int,
        *,
        is_strict: bool = True,
        if_empty: Callable[[], object] | None = None,
    ) -> Iterator[Any]:
        """Returns an iterator over the items from `position` on. If `is_strict` is True, some reread items before
        `position` are compared with the original items by their checksum."""
        if position or self._generators is not None:
            return chain.from_iterable(self._resumed(make, position, is_strict))
        before = save_generators()
        source = make()
        self._note_draws(before)
        return chain.from_iterable(self._pieces(source, if_empty))

    def _resumed(self, make: Callable[[], Iterator[Any]], position: int, is_strict: bool) -> Iterator[Iterator[Any]]:
        saved, is_compared = self._digest, self._has_saved and is_strict
        digest, last = SampleDigest(), None
        with _as_at(self._generators):
            stream = chain.from_iterable(self._pieces(make(), None, digest))
            if position:
                last = next(islice(stream, position - 1, position), _END)
        has_ended, last = last is _END, None
        self._digest = digest
        if is_compared and (has_ended or not digest.agrees_with(saved)):
            is_noise = self._draws or (
                not has_ended and SampleDigest.differ_in_numbers_alone(digest.checksum, saved.checksum)
            )
            self._report_difference(position, is_noise)
        yield stream

    def _report_difference(self, position: int, is_noise: bool) -> None:
        """Raises an error for reread items that differ from the original items. If `is_noise` is True, only warns,
        because the stream probably draws random numbers for each item."""
        if is_noise:
            warn_outside(
                f"the first {position} items of {self._name} contain other numbers than before the state was saved. If "
                "these are drawn for each item, as for augmentation, nothing is lost. If the order differs, some items "
                "come twice and others never: seed the order in each epoch",
                RuntimeWarning,
            )
            return
        raise RuntimeError(
            f"this pipeline does not repeat itself, so it cannot resume from the state: the first {position} items of "
            f"{self._name} differ from the items that were read before the state was saved. Seed the code that "
            "shuffles or draws them in each epoch, or shuffle with the pipe `.shuffle()`. load_state_dict(state, "
            "strict=False) of the loader resumes anyway, after the same number of items"
        )

    def _pieces(
        self, source: Iterator[Any], if_empty: Callable[[], object] | None, digest: SampleDigest | None = None
    ) -> Iterator[Iterator[Any]]:
        """Yields iterators for `chain.from_iterable`: in turn, the items up to the next sampled item, and this sampled
        item."""
        source = chain(source)  # `chain` does not call an exhausted iterator again
        digest, position = digest or self._digest, 0
        while True:
            if digest.next > position:
                yield islice(source, digest.next - position)
                position = digest.next
            before = save_generators() if position < 2 else None
            failed: BaseException | None = None
            item = None
            try:
                item = next(source)
            except StopIteration:
                if position == 0 and if_empty is not None:
                    if_empty()
                return
            except BaseException as error:  # raised below by another iterator, so that this generator can continue
                failed = error
            if before is not None:
                self._note_draws(before, is_second=position == 1)
            if failed is not None:
                yield map(raise_error, (failed,))
                continue
            digest.add(item)
            sampled, item = [item], None
            yield map(sampled.pop, (0,))  # no variable refers to the item, so the user can free it
            position += 1

    def _note_draws(self, before: dict[str, Any], is_second: bool = False) -> None:
        after = save_generators()
        before.pop("awaited", None)
        if any(before[name] != after[name] for name in before.keys() & after.keys()):
            self._generators = self._generators or before
            self._draws = self._draws or is_second


@contextmanager
def _as_at(generators: dict[str, Any] | None) -> Iterator[None]:
    if generators is None:
        yield
        return
    before = save_generators()
    before.pop("awaited", None)
    load_generators(generators)
    try:
        yield
    finally:
        load_generators(before)
