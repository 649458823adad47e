"""One step of a GRU, in PyTorch's variant, with a softmax output."""

from lemma.ledger.gradients.cells.cell import Cell

GRU = Cell(
    name="gru",
    about=(
        "One GRU step in the variant of torch.nn.GRU: the reset gate r acts on q = U_n @ h_prev + v_n, after the "
        "product, and h = (1 - z) * n + z * h_prev. Vectors are columns; W acts on the input and U on the state. "
        "PyTorch's two biases of a gate (b_ir and b_hr) have the same gradient and are one here; b_in and b_hn are "
        "b_n and v_n. A softmax output and its cross-entropy follow; dh_next arrives from the next step, and dh is "
        "the whole gradient, that included."
    ),
    sizes={"n_h": "hidden units", "n_x": "inputs", "n_y": "classes"},
    given={
        "x": "n_x 1",
        "h_prev": "n_h 1",
        **{f"W_{gate}": "n_h n_x" for gate in "rzn"},
        **{f"U_{gate}": "n_h n_h" for gate in "rzn"},
        **{f"b_{gate}": "n_h 1" for gate in "rzn"},
        "v_n": "n_h 1",
        "W_y": "n_y n_h",
        "b_y": "n_y 1",
        "y": "n_y 1",
        "dh_next": "n_h 1",
    },
    equations="""
        pre_r = W_r @ x + U_r @ h_prev + b_r
        r = sigmoid(pre_r)
        pre_z = W_z @ x + U_z @ h_prev + b_z
        z = sigmoid(pre_z)
        q = U_n @ h_prev + v_n
        pre_n = W_n @ x + b_n + r * q
        n = tanh(pre_n)
        h = (1 - z) * n + z * h_prev
        logits = W_y @ h + b_y
        y_hat = softmax(logits)
        loss = -sum(y * log(y_hat)) + sum(dh_next * h)
    """,
    one_hot=("y",),
    incoming=("dh_next",),
    aliases={
        **{f"{letter}_r": "r" for letter in ("G", "Gamma", "gamma")},
        **{f"{letter}_{gate}": "z" for letter in ("G", "Gamma", "gamma") for gate in "zu"},
        "h_tilde": "n",
    },
)
