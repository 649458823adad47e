"""The softmax and its cross-entropy with a one-hot target."""

from lemma.ledger.gradients.cells.cell import Cell

SOFTMAX_CROSS_ENTROPY = Cell(
    name="softmax-cross-entropy",
    about="The cross-entropy of softmax(z) with the one-hot target y. Vectors are columns.",
    sizes={"n": "classes"},
    given={"z": "n 1", "y": "n 1"},
    equations="""
        y_hat = softmax(z)
        loss = -sum(y * log(y_hat))
    """,
    one_hot=("y",),
    aliases={"p": "y_hat"},
)
