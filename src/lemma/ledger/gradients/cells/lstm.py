"""One step of an LSTM with a softmax output (problems C1, C2 and E9)."""

from lemma.ledger.gradients.cells.cell import Cell

LSTM = Cell(
    name="lstm",
    about=(
        "One LSTM step with update, forget and output gates G_u, G_f, G_o and candidate c_tilde, a softmax output and "
        "its cross-entropy. Vectors are columns; ax = [a_prev; x] is stacked. da_next and dc_next arrive from the "
        "next step; da and dc are the whole gradients, these included."
    ),
    sizes={"n_a": "hidden units", "n_x": "inputs", "n_y": "classes"},
    given={
        "x": "n_x 1",
        "a_prev": "n_a 1",
        "c_prev": "n_a 1",
        **{f"W_{gate}": "n_a n_a+n_x" for gate in "ufoc"},
        **{f"b_{gate}": "n_a 1" for gate in "ufoc"},
        "W_y": "n_y n_a",
        "b_y": "n_y 1",
        "y": "n_y 1",
        "da_next": "n_a 1",
        "dc_next": "n_a 1",
    },
    equations="""
        ax = [a_prev; x]
        pre_u = W_u @ ax + b_u
        pre_f = W_f @ ax + b_f
        pre_o = W_o @ ax + b_o
        pre_c = W_c @ ax + b_c
        G_u = sigmoid(pre_u)
        G_f = sigmoid(pre_f)
        G_o = sigmoid(pre_o)
        c_tilde = tanh(pre_c)
        c = G_f * c_prev + G_u * c_tilde
        a = G_o * tanh(c)
        z = W_y @ a + b_y
        y_hat = softmax(z)
        loss = -sum(y * log(y_hat)) + sum(da_next * a) + sum(dc_next * c)
    """,
    one_hot=("y",),
    incoming=("da_next", "dc_next"),
    aliases={
        **{f"{letter}_{gate}": f"G_{gate}" for letter in ("Gamma", "gamma") for gate in "ufo"},
        **{f"z_{gate}": f"pre_{gate}" for gate in "ufoc"},
        **{f"pre_G_{gate}": f"pre_{gate}" for gate in "ufo"},
        **{f"pre_Gamma_{gate}": f"pre_{gate}" for gate in "ufo"},
        "pre_c_tilde": "pre_c",
        "G_i": "G_u",
        "h": "a",
        "h_prev": "a_prev",
        "dh_next": "da_next",
    },
)
