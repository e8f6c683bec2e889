"""Defines a base class of objects with a state that consists of some attributes."""

from typing import Any, ClassVar


class KeptState:
    kept: ClassVar[tuple[str, ...]]
    is_loaded = False

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.kept:
            setattr(self, name, state_dict[name])
        self.is_loaded = True
