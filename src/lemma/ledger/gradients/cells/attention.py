"""One head of scaled dot-product self-attention."""

from lemma.ledger.gradients.cells.cell import Cell

ATTENTION = Cell(
    name="attention",
    about=(
        "One head of self-attention without a mask. Tokens are the rows of X; each row of alpha sums to one. "
        "S holds the scores with the factor 1/sqrt(d_k) in them. dout, the gradient of the output, is given."
    ),
    sizes={"n": "tokens", "d": "width of a token", "d_k": "width of a query", "d_v": "width of a value"},
    given={"X": "n d", "W_q": "d d_k", "W_k": "d d_k", "W_v": "d d_v", "dout": "n d_v"},
    equations="""
        Q = X @ W_q
        K = X @ W_k
        V = X @ W_v
        S = Q @ K.T / sqrt(d_k)
        alpha = softmax(S)
        out = alpha @ V
        loss = sum(dout * out)
    """,
    incoming=("dout",),
    aliases={
        **{f"W_{name.upper()}": f"W_{name}" for name in "qkv"},
        "A": "alpha",
        "scores": "S",
        "O": "out",
        "Out": "out",
        "dO": "dout",
        "dOut": "dout",
    },
)
