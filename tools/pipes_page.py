"""Writes the overview page of all pipes, grouped by purpose, with a picture and a sentence for each pipe."""

from __future__ import annotations

import inspect

from pipe_groups import GROUPS, Group, Sample
from pipe_pictures import draw, outputs, sample_files

_HEAD = """\
# All pipes

Each picture shows what goes in above, what comes out below, and the code between them. The colors follow the items.
Boxes around items are lists and dicts (square) and tuples (round). A dashed box is an open stream. Most pipes can be
written as methods: `pipe.batch(2)` is `Batcher(pipe, 2)`.
"""


def summary(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _card(sample: Sample, group: Group) -> str:
    cls = getattr(group.module, sample.name)
    full = f"{group.module.__name__}.{sample.name}"
    picture = draw(sample, outputs(sample, group))
    raw = f"```{{raw}} html\n{picture}\n```"
    return f"::::{{container}} pipe\n{{py:obj}}`{sample.name} <{full}>`\n\n{raw}\n\n{summary(cls)}\n::::\n"


def text() -> str:
    parts = [_HEAD]
    with sample_files():
        for group in GROUPS:
            parts.append(f"(pipes-{group.key})=\n## {group.title}\n\n{group.text}\n")
            cards = "\n".join(_card(sample, group) for sample in group.samples)
            parts.append(f":::::{{container}} pipes\n\n{cards}\n:::::\n")
    return "\n".join(parts)
