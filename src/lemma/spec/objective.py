"""What a language model on running text makes small: the causal loss, or one that another package brings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, model_serializer

from lemma.errors import SpecError, unknown
from lemma.spec.base import Spec
from lemma.spec.packages import Group

CAUSAL = "causal"


class NewObjective(Spec):
    """An objective that another package brings: its settings, and where the loss is.

    A subclass has its name as `kind: Literal["focal"] = "focal"`, and a default for each of its settings.
    """

    loss: ClassVar[str] = ""
    """A function, as package.module:name, of logits (batch, time, V), targets (batch, time) and the settings by name;
    it returns the mean over all targets."""

    if TYPE_CHECKING:
        kind: Any

    def settings(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}


OBJECTIVES: Group[NewObjective] = Group("lemma.objectives", "objective", NewObjective, "kind", lambda: (CAUSAL,))
"""What other packages bring."""


class ChosenObjective(Spec):
    """An objective by its name, with settings that are read when it is used.

    So a run can be opened, judged and let write where the package that it was trained with is not installed.
    """

    model_config = ConfigDict(extra="allow")

    kind: str

    @property
    def words(self) -> dict[str, Any]:
        """Its settings as they were given."""
        return dict(self.model_extra or {})

    @model_serializer
    def _written(self) -> str | dict[str, Any]:
        return {"kind": self.kind, **self.words} if self.words else self.kind

    def found(self) -> NewObjective | None:
        """The objective with its settings; None is the causal one. One that is not installed is refused."""
        kind = None if self.kind == CAUSAL else OBJECTIVES.find(self.kind)
        if kind is None and self.kind != CAUSAL:
            known = [CAUSAL, *OBJECTIVES.others()]
            more = " If another package brings it, that package is not installed."
            raise SpecError(unknown("recipe.objective", self.kind, known) + more)
        if kind is None and self.words:
            raise SpecError(f"recipe.objective: causal has no settings; got {', '.join(self.words)}. Leave them out.")
        return kind.read({"kind": self.kind, **self.words}, f"recipe.objective {self.kind}") if kind else None


def _from_name(value: Any) -> Any:
    return value if isinstance(value, (Mapping, ChosenObjective)) else {"kind": value}


Objective = Annotated[ChosenObjective, BeforeValidator(_from_name)]
