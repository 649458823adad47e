"""A classifier: any body that reads text, and a head that says which class it belongs to."""

from typing import Annotated, Literal

from pydantic import Field

from lemma.spec.base import Letter
from lemma.spec.bodies import Reading


class Classifier(Reading):
    """A body that reads a text, what is taken of the vectors it gives, and one linear map to the classes."""

    family: Literal["classifier"] = "classifier"
    classes: Annotated[int, Field(ge=2), Letter("K")] = 2
    """Number of classes; training takes it from the labels."""
