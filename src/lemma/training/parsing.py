"""What a parser learns: the governor and relation of every word, and heads that are pictures of their relations."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from lemma.data import Dataset, TreebankData
from lemma.errors import SpecError
from lemma.models import LanguageModel, ParserModel
from lemma.objectives.parsing import arcs, attention
from lemma.spec import ModelSpec, Parser, Recipe
from lemma.training.lesson import Lesson, lesson_for


class ParsingLesson(nn.Module):
    """A parser and its objective in one module: the arcs' cross-entropy and B1's attention loss."""

    terms: tuple[str, ...] = ("loss", "attention")
    """The names of what it reports."""

    def __init__(self, model: ParserModel) -> None:
        super().__init__()
        self.model = model
        self.weight = model.spec.attention_loss
        self.terms = ("loss", "attention") if self.weight else ("loss",)

    def forward(
        self, rows: Int[Tensor, "rows places columns"], targets: Int[Tensor, "rows words two"], state: None = None
    ) -> tuple[Float[Tensor, ""], tuple[Float[Tensor, ""], ...], None]:
        """Return what is minimised, the terms that are reported, and no state."""
        scores = self.model(rows).float()
        loss = arcs(scores, targets)
        if not self.weight:  # the null place is still touched: a team shares the gradients of all parameters
            return loss + 0.0 * self.model.heads.null.sum(), (loss,), None
        picture = attention(scores, self.model.heads.null, targets)
        return loss + self.weight * picture, (loss, picture), None


def refuse_other_kind(spec: ModelSpec, dataset: Dataset | TreebankData) -> None:
    """Refuse text for a parser and trees for a language model."""
    if isinstance(spec, Parser) != isinstance(dataset, TreebankData):
        wanted = "a treebank, not text" if isinstance(spec, Parser) else "text, not a treebank"
        raise SpecError(f"a model of the family {spec.family} learns {wanted}.")


def lesson_of(model: LanguageModel | ParserModel, recipe: Recipe) -> Lesson | ParsingLesson:
    """The lesson of a model, of whatever kind it is."""
    if not isinstance(model, ParserModel):
        return lesson_for(model, recipe)
    if recipe.focus or recipe.near:
        raise SpecError(
            "recipe.focus and recipe.near shape a language model's attention; a parser's heads are shaped by their "
            "relations. Leave the words out."
        )
    return ParsingLesson(model)
