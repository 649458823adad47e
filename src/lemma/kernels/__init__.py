"""Triton kernels and CUDA graphs: faster paths for a GPU, each next to the plain path that it replaces.

| module | replaces | runs without it |
|---|---|---|
| `row_statistics` | attention, then entropy and distance of its rows | `layers.penalties`, in blocks of rows |
| `output_loss` | output layer and cross-entropy | the output layer and `cross_entropy`, in `tasks.language` |
| `decoding` | one decoding step of a decoder, a few kernels per layer | `DecoderModel.step` in PyTorch |
| `cuda_graphs` | launching the kernels of a step one by one | the same step, not captured |

`support.is_available` decides: a GPU of compute capability 8.0 or later, and Triton installed. Nothing here imports
other packages of Lemma.
"""
