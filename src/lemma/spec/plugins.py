"""Plugins: families, positions and objectives of other installed packages, found by their entry points.

They can also be registered in this process, as in a notebook; a registered class comes before an installed one.
Entry points are read only when a name is not built in, so built-in names always win and a package that is not used can
break nothing. A file never names a module: it has a name, and the installed packages say what that means.
"""

import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lemma.errors import LemmaError, PackageError, SpecError, describe_unknown
from lemma.spec.base import Spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = TypeVar("Kind", bound=Spec)


@dataclass(frozen=True)
class PluginGroup(Generic[Kind]):
    """A group of entry points, each of which leads to a spec class whose `tag` field is the entry point's name."""

    name: str  # in the metadata of packages, such as lemma.families
    noun: str  # such as family
    base_class: type[Kind]
    tag: str  # family, or kind
    reserved_names: Callable[[], Collection[str]]
    registered: dict[str, type[Kind]] = field(default_factory=dict)  # in this process
    parts: dict[str, Any] = field(default_factory=dict)  # objects that registered classes name, by their paths

    def register(self, spec_class: type[Kind], parts: Mapping[str, Any]) -> None:
        """Register a spec class by its name in this process; a class of that name is replaced.

        `parts` are the objects that the class refers to, such as its model, by attribute name.
        """
        tag = spec_class.model_fields.get(self.tag)
        name = str(tag.default) if tag else ""
        if name in self.reserved_names():
            raise SpecError(f"register: '{name}' is a {self.noun} of Lemma's own. Choose another name.")
        self._check(spec_class, name, f"register: {spec_class.__name__}")
        part_names = [var for var in self.base_class.__class_vars__ if vars(self.base_class).get(var) in ("", False)]
        for part_name, part in parts.items():
            if part_name not in part_names:
                raise SpecError(describe_unknown(f"register {name}: part", part_name, sorted(part_names)))
            path = f"{getattr(part, '__module__', spec_class.__module__)}:{name} {part_name}"
            self.parts[path] = part
            setattr(spec_class, part_name, path)
        if missing := next((part_name for part_name in part_names if getattr(spec_class, part_name) == ""), None):
            title = spec_class.__name__
            raise SpecError(f"register: {title} needs its {missing}: lemma.register({title}, {missing}=…)")
        self.registered[name] = spec_class

    def names(self) -> list[str]:
        """Return the names of all plugins of the group; one with a built-in name is left out with a warning."""
        reserved = self.reserved_names()
        for entry in (entry for name, entries in self._entries().items() if name in reserved for entry in entries):
            warnings.warn(
                f"the package {_package_title(entry)} brings a {self.noun} '{entry.name}', which is a name of Lemma's "
                "own: it is ignored. It needs another name.",
                stacklevel=2,
            )
        return [*self.registered, *(name for name in self._entries() if name not in {*reserved, *self.registered})]

    def provides(self, name: str) -> bool:
        """Return whether a plugin has this name, including those of packages installed since the last look-up."""
        if name not in self.reserved_names() and name not in self.registered and name not in self._entries():
            entry_points_of.cache_clear()
        return name in self.names()

    def find(self, name: str) -> type[Kind] | None:
        """Return the spec class of a plugin; None if the name is built in or unknown."""
        if not self.provides(name):
            return None
        if name in self.registered:
            return self.registered[name]
        entries = self._entries()[name]
        titles = [_package_title(entry) for entry in entries]
        if len(entries) > 1:
            raise PackageError(
                f"{self.noun} '{name}' is brought by two packages, {' and '.join(titles)}. Uninstall one of them."
            )
        with attribute_errors(titles[0], f"the {self.noun} '{name}'"):
            spec_class = entries[0].load()
        description = f"the package {titles[0]} brings the {self.noun} '{name}' as {entries[0].value}"
        self._check(spec_class, name, description)
        return spec_class

    def load_part(self, name: str, path: str) -> Any:
        """Return the object that the plugin `name` refers to by a path: a registered one, or else an imported one.

        `path` is written as `package.module:attribute`.
        """
        if path in self.parts:
            return self.parts[path]
        module, colon, attribute = path.partition(":")
        with self.attribute_errors(name, path):
            if not colon:
                raise ValueError(f"'{path}' is not of the form package.module:attribute")
            return getattr(import_module(module), attribute)

    def attribute_errors(self, name: str, path: str = "") -> Any:
        """Return a context manager that turns any error into a PackageError about the package of the plugin `name`.

        The package of a plugin that was registered is the first part of `path`.
        """
        entries = self._entries().get(name)
        package = _package_title(entries[0]) if entries else path.partition(".")[0]
        return attribute_errors(package, f"the {self.noun} '{name}'")

    def _entries(self) -> dict[str, list["EntryPoint"]]:
        """Return the installed entry points of the group by name."""
        return entry_points_of(self.name, tuple(sys.path))

    def _check(self, spec_class: Any, name: str, description: str) -> None:
        """Raise a PackageError unless a class derives from the base class and has this name in its tag field.

        `description` begins the message.
        """
        base = self.base_class
        if not (isinstance(spec_class, type) and issubclass(spec_class, base)):
            raise PackageError(f"{description}, which is not a subclass of {base.__module__}.{base.__name__}.")
        tag = spec_class.model_fields.get(self.tag)
        names = get_args(tag.annotation) if tag else ()
        if not name or names != (name,) or (tag and tag.default != name):
            name = name or "name"
            raise PackageError(f"{description}, which lacks the line: {self.tag}: Literal['{name}'] = '{name}'.")


@contextmanager
def attribute_errors(package: str, noun: str) -> Iterator[None]:
    """Turn any error in the block into a PackageError that names the package; `noun` is its plugin, for the message."""
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
    """Return the entry points of a group by name; `path` is `sys.path`, here only as a key of the cache."""
    from importlib.metadata import entry_points  # not needed where all names are Lemma's own

    by_name: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        by_name.setdefault(entry.name, []).append(entry)
    return by_name


def _package_title(entry: "EntryPoint") -> str:
    """Return the name and version of an entry point's package."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value.partition(".")[0]


@dataclass(frozen=True)
class OpenChoice:
    """Annotation of a field that is read by a tagged union of built-in classes, or by the plugin class of its name."""

    built_in: Any
    group: PluginGroup[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Wrap the union in the look-up of names, and serialise a value by its own class."""
        serialization = core_schema.plain_serializer_function_ser_schema(Spec.to_dict)
        return core_schema.no_info_wrap_validator_function(
            self._read, handler.generate_schema(self.built_in), serialization=serialization
        )

    def _read(self, value: Any, read_built_in: Callable[[Any], Any]) -> Any:
        """Validate a value by the plugin class that its tag names, or else by `read_built_in`; return the spec."""
        if isinstance(value, self.group.base_class):
            return value
        name = value.get(self.group.tag) if isinstance(value, Mapping) else None
        if not isinstance(name, str) or name in self.group.reserved_names():
            return read_built_in(value)
        spec_class = self.group.find(name)
        return spec_class.read(value, name) if spec_class else read_built_in(value)
