"""Plugins: families, positions and objectives of other installed packages, found by their entry points.

Or registered in this process, as in a notebook: what is registered comes before what packages bring.
Entry points are read only when a name is not one of Lemma's own, so that Lemma's own names always win and a package
that is not used can break nothing. A file never names a module: it has a name, and the installed packages say what that
means.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from pydantic import BeforeValidator, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lemma.errors import LemmaError, PackageError, SpecError, describe_unknown
from lemma.spec.base import Spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = TypeVar("Kind", bound=Spec)


@dataclass(frozen=True)
class PluginGroup(Generic[Kind]):
    """The entry points of one group: each leads to a spec class whose `tag` field is the entry point's name."""

    name: str
    """The group in the packages' metadata, such as lemma.families."""
    noun: str
    """What it holds, such as family."""
    base_class: type[Kind]
    """The base class of the classes."""
    tag: str
    """The field with the name: family, or kind."""
    reserved_names: Callable[[], Collection[str]]
    """Lemma's own names."""
    registered: dict[str, type[Kind]] = field(default_factory=dict)
    """What was registered in this process."""
    parts: dict[str, Any] = field(default_factory=dict)
    """What the registered classes name, by the paths that stand for it."""

    def register(self, spec_class: type[Kind], parts: Mapping[str, Any]) -> None:
        """Make a class known by its name in this process, with the parts that it names; a second time replaces it."""
        tag = spec_class.model_fields.get(self.tag)
        name = str(tag.default) if tag else ""
        if name in self.reserved_names():
            raise SpecError(f"register: '{name}' is a {self.noun} of Lemma's own. Choose another name.")
        self._check(spec_class, name, f"register: {spec_class.__name__}")
        unset = [word for word in self.base_class.__class_vars__ if vars(self.base_class).get(word) in ("", False)]
        for word, part in parts.items():
            if word not in unset:
                raise SpecError(describe_unknown(f"register {name}: the part", word, sorted(unset)))
            path = f"{getattr(part, '__module__', spec_class.__module__)}:{name} {word}"
            self.parts[path] = part
            setattr(spec_class, word, path)
        for word in unset:
            if getattr(spec_class, word) == "":
                raise SpecError(
                    f"register: {spec_class.__name__} needs its {word}: lemma.register({spec_class.__name__}, {word}=…)"
                )
        self.registered[name] = spec_class

    def names(self) -> list[str]:
        """The names of other packages; one that is Lemma's own is ignored with a warning."""
        own = self.reserved_names()
        for entry in (entry for name, entries in self._entries().items() if name in own for entry in entries):
            warnings.warn(
                f"the package {_package_title(entry)} brings a {self.noun} '{entry.name}', which is a name of Lemma's own: "
                "it is ignored. It needs another name.",
                stacklevel=2,
            )
        return [*self.registered, *(name for name in self._entries() if name not in {*own, *self.registered})]

    def provides(self, name: str) -> bool:
        """Whether another package has this name; one installed a moment ago counts too."""
        if name not in self.reserved_names() and name not in self.registered and name not in self._entries():
            entry_points_of.cache_clear()
        return name in self.names()

    def find(self, name: str) -> type[Kind] | None:
        """The class of another package by this name; None if the name is Lemma's or unknown."""
        if not self.provides(name):
            return None
        if name in self.registered:
            return self.registered[name]
        entry, *more = self._entries()[name]
        if more:
            titles = " and ".join(_package_title(one) for one in (entry, *more))
            raise PackageError(f"{self.noun} '{name}' is brought by two packages, {titles}. Uninstall one of them.")
        with attribute_errors(_package_title(entry), f"the {self.noun} '{name}'"):
            found = entry.load()
        return self._checked(found, entry)

    def load_part(self, name: str, path: str) -> Any:
        """Import what belongs to a name, given as `package.module:attribute`, unless it was registered."""
        if path in self.parts:
            return self.parts[path]
        module, colon, attribute = path.partition(":")
        with self.attribute_errors(name, path):
            if not colon:
                raise ValueError(f"'{path}' is not of the form package.module:attribute")
            return getattr(import_module(module), attribute)

    def attribute_errors(self, name: str, path: str = "") -> Any:
        """A context in which every error is reported as one of the package that has this name."""
        entries = self._entries().get(name)
        return attribute_errors(
            _package_title(entries[0]) if entries else path.partition(".")[0], f"the {self.noun} '{name}'"
        )

    def _entries(self) -> dict[str, list["EntryPoint"]]:
        return entry_points_of(self.name, tuple(sys.path))

    def _checked(self, found: Any, entry: "EntryPoint") -> type[Kind]:
        start = f"the package {_package_title(entry)} brings the {self.noun} '{entry.name}' as {entry.value}"
        self._check(found, entry.name, start)
        return found

    def _check(self, found: Any, name: str, start: str) -> None:
        """Refuse what is not a class of the right kind, or has another name inside."""
        if not (isinstance(found, type) and issubclass(found, self.base_class)):
            raise PackageError(
                f"{start}, which is not a subclass of {self.base_class.__module__}.{self.base_class.__name__}."
            )
        tag = found.model_fields.get(self.tag)
        names = get_args(tag.annotation) if tag else ()
        if not name or names != (name,) or (tag and tag.default != name):
            said = name or "name"
            raise PackageError(f"{start}, which lacks the line: {self.tag}: Literal['{said}'] = '{said}'.")


@contextmanager
def attribute_errors(package: str, noun: str) -> Iterator[None]:
    """Turn any error in another package's code into one that names the package."""
    try:
        yield
    except LemmaError:
        raise
    except (Exception, SystemExit) as error:
        raise PackageError(
            f"{noun} comes from the package {package}, which fails: {type(error).__name__}: {error}. "
            "Fix or uninstall that package; --debug shows where it fails."
        ) from error


@cache
def entry_points_of(group: str, path: tuple[str, ...]) -> dict[str, list["EntryPoint"]]:
    """The entry points of a group by name, read once for every `sys.path`."""
    from importlib.metadata import entry_points  # not needed where all names are Lemma's own

    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=lambda one: one.name):
        found.setdefault(entry.name, []).append(entry)
    return found


def _package_title(entry: "EntryPoint") -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value.partition(".")[0]


def kind_validator(
    noun: str, kinds: Collection[str], group: PluginGroup[Any] | None = None, default: str | None = None
) -> BeforeValidator:
    """Let one of several specs be given by its `kind` alone; a table that does not name it has the default kind."""

    def read(value: Any) -> Any:
        if default and isinstance(value, Mapping) and "kind" not in value:
            return {"kind": default, **value}
        if isinstance(value, bool | int | float):
            value = str(value)
        if not isinstance(value, str):
            return value
        if value not in kinds and not (group and group.provides(value)):
            raise ValueError(describe_unknown(noun, value, [*kinds, *(group.names() if group else ())]))
        return {"kind": value}

    return BeforeValidator(read)


@dataclass(frozen=True)
class OpenChoice:
    """An annotation: a value is read by the union of our own, or by the plugin class of its name."""

    built_in: Any
    """The tagged union of Lemma's own."""
    group: PluginGroup[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the union in the look-up of names, and serialise a value by its own class."""
        written = core_schema.plain_serializer_function_ser_schema(Spec.to_dict)
        return core_schema.no_info_wrap_validator_function(
            self._read, handler.generate_schema(self.built_in), serialization=written
        )

    def _read(self, value: Any, ours: Callable[[Any], Any]) -> Any:
        if isinstance(value, self.group.base_class):
            return value
        name = value.get(self.group.tag) if isinstance(value, Mapping) else None
        if not isinstance(name, str) or name in self.group.reserved_names():
            return ours(value)
        found = self.group.find(name)
        return found.read(value, name) if found else ours(value)
