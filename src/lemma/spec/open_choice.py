"""A tagged choice that is open: among Lemma's own specs, or among those that other packages bring."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lemma.spec.base import Spec
from lemma.spec.packages import Group


@dataclass(frozen=True)
class Open:
    """An annotation: a value is read by the union of our own, or by the class that brings its name."""

    ours: Any
    """The tagged union of Lemma's own."""
    group: Group[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Put the look-up of names around the union, and write a value by its own class."""
        written = core_schema.plain_serializer_function_ser_schema(Spec.to_dict)
        return core_schema.no_info_wrap_validator_function(
            self._read, handler.generate_schema(self.ours), serialization=written
        )

    def _read(self, value: Any, ours: Callable[[Any], Any]) -> Any:
        if isinstance(value, self.group.kind):
            return value
        name = value.get(self.group.tag) if isinstance(value, Mapping) else None
        if not isinstance(name, str) or name in self.group.own():
            return ours(value)
        found = self.group.find(name)
        return found.read(value, name) if found else ours(value)
