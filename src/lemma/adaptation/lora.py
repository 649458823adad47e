"""LoRA for any module: updates beside the matrices that patterns of paths name."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from torch import nn

from lemma.adaptation.low_rank import Beside, LoraEmbedding, LoraMap, LoraMatrices, Update
from lemma.adaptation.matrices import LOOK_UPS, Matrix, body_matrices, is_conv1d, is_map, matrices
from lemma.adaptation.patterns import fitted, listed
from lemma.adaptation.tree import put
from lemma.errors import SpecError
from lemma.spec import Lora

Module = TypeVar("Module", bound=nn.Module)


def put_updates(model: Module, method: Lora, chosen: Sequence[Matrix]) -> Module:
    """Put new updates beside the chosen matrices, and return the model."""
    updates: dict[int, Update] = {}
    for matrix in chosen:
        update = updates[id(matrix.weight)] = new_update(matrix, method.rank, method.alpha / method.rank)
        update.dropout = method.lora_dropout
    return wrap(model, chosen, updates)


def chosen_matrices(model: nn.Module, targets: Sequence[str], learned: Collection[int] = ()) -> list[Matrix]:
    """The matrices that targets name, each once; those of the body if none is named."""
    known = [matrix for matrix in matrices(model) if id(matrix.weight) not in learned]
    if targets:
        return [known[at] for at in fitted("targets", targets, [matrix.names for matrix in known])]
    chosen = [matrix for matrix in body_matrices(model) if id(matrix.weight) not in learned]
    if not chosen:
        raise SpecError(
            f"there are no matrices for LoRA by default. Name targets; there are: {listed(m.path for m in known)}."
        )
    return chosen


def new_update(matrix: Matrix, rank: int, scale: float) -> Update:
    """A new update of one matrix, with its first values."""
    _refuse_unfit(matrix)
    update = Update(matrix.weight, rank, scale, transposed=matrix.transposed)
    if any(isinstance(place.owner, LOOK_UPS) for place in matrix.places):
        nn.init.normal_(update.A)  # as the paper's own code has it: one token's row alone has no fan to divide by
    return update


def wrap(model: Module, chosen: Sequence[Matrix], updates: Mapping[int, Update]) -> Module:
    """Put every module that owns chosen matrices behind a wrapper that holds their updates."""
    owners: defaultdict[nn.Module, dict[str, Update]] = defaultdict(dict)
    for matrix in chosen:
        for place in matrix.places:
            owners[place.owner][place.name] = updates[id(matrix.weight)]
    wrappers = {owner: _wrapper(owner, beside) for owner, beside in owners.items()}
    for owner, wrapper in wrappers.items():
        for part in (wrapper, *owners[owner].values()):
            part.training = owner.training
    return put(model, wrappers)


def refuse_rank(chosen: Sequence[Matrix], rank: int) -> None:
    """Refuse a rank that some matrix does not have."""
    low = min(chosen, key=lambda matrix: min(matrix.weight.shape))
    most = min(low.weight.shape)
    if rank > most:
        rows, columns = low.weight.shape
        raise SpecError(
            f"rank = {rank} is more than {low.path} of {rows} × {columns} can have. "
            f"Take rank={most} or less, or leave that matrix out of targets."
        )


def _wrapper(owner: nn.Module, updates: dict[str, Update]) -> Beside:
    alone = updates.get("weight") if len(updates) == 1 else None
    if alone and is_map(owner):
        return LoraMap(owner, alone)
    if alone and isinstance(owner, nn.Embedding):
        return LoraEmbedding(owner, alone)
    return LoraMatrices(owner, updates)


def _refuse_unfit(matrix: Matrix) -> None:
    for place in matrix.places:
        if (norm := getattr(place.owner, "max_norm", None)) is not None:
            raise SpecError(
                f"{place.path} has max_norm = {norm}: it changes its own matrix whenever it is read, so that nothing "
                "can stay frozen beside an update. Set max_norm=None, or leave it out of targets."
            )
    if len({is_conv1d(place.owner) for place in matrix.places}) > 1:
        names = ", ".join(place.full for place in matrix.places)
        raise SpecError(f"{names} are one matrix, which not all read the same way round: one update cannot serve both.")
