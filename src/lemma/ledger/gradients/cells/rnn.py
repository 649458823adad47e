"""One step of a recurrent language model with sigmoid units (problem D1)."""

from lemma.ledger.gradients.cells.cell import Cell

RNN = Cell(
    name="rnn",
    about=(
        "One step of a recurrent language model with sigmoid hidden units and the cross-entropy of its softmax. "
        "Vectors are rows; w is the current word, one-hot, and x = L_x its row of the embedding L. Nothing arrives "
        "from later steps. delta1 and delta2 are the gradients of z1 and z2."
    ),
    sizes={"n_V": "words", "d": "embedding width", "D": "hidden units"},
    given={
        "w": "1 n_V",
        "h_prev": "1 D",
        "L": "n_V d",
        "H": "D D",
        "I": "d D",
        "U": "D n_V",
        "b1": "1 D",
        "b2": "1 n_V",
        "y": "1 n_V",
    },
    equations="""
        x = w @ L
        z1 = h_prev @ H + x @ I + b1
        h = sigmoid(z1)
        z2 = h @ U + b2
        y_hat = softmax(z2)
        loss = -sum(y * log(y_hat))
    """,
    one_hot=("w", "y"),
    aliases={
        "L_x": "x",
        **{f"delta{mark}{index}": f"dz{index}" for mark in ("", "_") for index in (1, 2)},
        **{f"{name}_{index}": f"{name}{index}" for name in "bz" for index in (1, 2)},
    },
)
