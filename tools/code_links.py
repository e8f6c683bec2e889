"""A Sphinx extension that links code in running text to the reference and adapts docstrings to Sphinx.

The documents and docstrings are plain Markdown, so that they are readable in an editor. The extension links names
between backticks, such as `DataLoader2`, `.batch(3)` and `DataLoader2.seed`, to their entries in the reference.
"""

from __future__ import annotations

import builtins
import importlib
import re
import typing
from collections.abc import Iterator
from typing import Any

from api_reference import MODULES, functional_forms
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

from torchdata.datapipes import map as map_pipes

_ITER = "torchdata.datapipes.iter."
_FORMS = {
    form: _ITER + cls.__name__ for cls, form in functional_forms().items() if not issubclass(cls, map_pipes.MapDataPipe)
}
#: Names that also have another meaning. `.map` becomes a link, but `map` does not.
_AMBIGUOUS = {"enumerate", "filter", "map", "prometheus", "slice", "zip"}
_PUBLIC = {
    name for module in [*MODULES, "torchdata.datapipes.iter"] for name in importlib.import_module(module).__all__
}
_PUBLIC |= set(vars(builtins)) | {"MapDataPipe"}

#: Attributes of pipes that only this package uses.
_PLUMBING = {"counterpart", "item_attributes", "iteration_state"}


class CodeLinks(SphinxPostTransform):
    default_priority = 9  # runs before Sphinx resolves the references

    def run(self, **kwargs: Any) -> None:
        index = self._index()
        for literal in list(self.document.findall(nodes.literal)):
            if any(isinstance(above, (nodes.reference, nodes.title)) for above in _ancestors(literal)):
                continue
            full = self._find(literal.astext(), index)
            if full is None:
                continue
            entry = self.env.domaindata["py"]["objects"][full]
            uri = self.app.builder.get_relative_uri(self.env.current_document.docname, entry.docname)
            link = nodes.reference("", "", refuri=f"{uri}#{entry.node_id}", internal=True, reftitle=full)
            literal.replace_self(link)
            link += literal

    def _index(self) -> dict[str, str]:
        found: dict[str, str] = {}
        objects = self.env.domaindata["py"]["objects"]
        # If several classes have the same name, the short name refers to a node on pages about nodes, and to an
        # iterable-style pipe on all other pages.
        preferred = "torchdata.nodes." if "nodes" in self.env.current_document.docname else _ITER
        for full in sorted(objects, key=lambda name: (not name.startswith(preferred), name)):
            entry = objects[full]
            if entry.aliased or entry.objtype == "module":
                continue
            parts = full.split(".")
            wanted = 2 if entry.objtype in ("method", "attribute", "property") else 1
            for length in range(wanted, len(parts) + 1):
                found.setdefault(".".join(parts[-length:]), full)
        return found

    @staticmethod
    def _find(text: str, index: dict[str, str]) -> str | None:
        name = re.sub(r"\([^()]*\)$", "", text)
        if not re.fullmatch(r"\.?[A-Za-z_][\w.]*", name) or name in _AMBIGUOUS:
            return None
        if name.startswith(".") or name in _FORMS:
            return index.get(_FORMS.get(name.removeprefix("."), ""))
        return index.get(name)


def _ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while (node := node.parent) is not None:
        yield node


def markup(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Adapts a docstring. Removes the `Role:` paragraph of a module, which is for developers."""
    if what == "module":
        paragraphs = "\n".join(lines).split("\n\n")
        lines[:] = "\n\n".join(part for part in paragraphs if not part.startswith("Role: ")).split("\n")
    lines[:] = [line for line in lines if not re.match(r"\s+_\w+: ", line)]  # removes lines about private parameters
    lines[:] = [
        line if line.lstrip().startswith((">>>", "...")) else re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", r"``\1``", line)
        for line in lines
    ]
    form = functional_forms().get(value) if isinstance(value, type) else None
    if form is not None:
        end = next((index for index, line in enumerate(lines) if not line.strip()), len(lines))
        lines[end:end] = ["", f"As a method: ``pipe.{form}(…)``.", ""]


def without_private(app: Sphinx, name: str, value: Any, options: Any, bases: list[Any]) -> None:
    public = [base for base in bases if getattr(typing.get_origin(base) or base, "__name__", "") in _PUBLIC]
    bases[:] = public or [object]


def without_plumbing(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    return True if name in _PLUMBING else None


def public_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, arguments: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    if arguments is not None:
        arguments = re.sub(r", _\w+(: [^,()]+)?(?=[,)])", "", arguments)
        arguments = re.sub(r"= _\w+", "= ...", arguments)
    return arguments, returned


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", markup, priority=100)  # runs before Sphinx parses the sections
    app.connect("autodoc-process-bases", without_private)
    app.connect("autodoc-process-signature", public_signature)
    app.connect("autodoc-skip-member", without_plumbing)
    app.add_post_transform(CodeLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
