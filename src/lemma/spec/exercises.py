"""The kinds of exercises by name, for `lemma check KIND`. Their modules are imported when they are used."""

from typing import NamedTuple


class KindEntry(NamedTuple):
    """Where the class of a kind is, and a sentence on it."""

    path: str  # module and class below lemma.checking.exercises
    summary: str
    example: str  # arguments of `lemma check KIND`, for the help


KINDS: dict[str, KindEntry] = {
    "n-gram": KindEntry(
        "ngram:NGramExercise",
        "Check n-gram models: counts, smoothed probabilities, perplexity.",
        'corpus="I am Sam / Sam I am" "P(Sam | am) = 1/2"',
    ),
    "sequence": KindEntry(
        "sequence:SequenceExercise",
        "Check hidden Markov models and CRFs: Viterbi, forward, backward, estimation.",
        'start="H 0.8, C 0.2" transition="H: H 0.7, C 0.3; C: H 0.4, C 0.6" '
        'emission="H: a 0.9, b 0.1; C: a 0.2, b 0.8" observations="a b" "path = H C" "P(O) = 0.244"',
    ),
    "parsing": KindEntry(
        "parsing:DependencyExercise",
        "Check dependency parsing: transitions, stack and arcs, projectivity, UAS and LAS.",
        'sentence="She ate fish" heads="2 0 2" "transitions = SHIFT SHIFT LEFT-ARC SHIFT RIGHT-ARC RIGHT-ARC"',
    ),
    "spanning-tree": KindEntry(
        "parsing:SpanningTreeExercise",
        "Check maximum spanning trees of dependency scores (Chu–Liu–Edmonds).",
        'scores="ROOT: a 9, b 10; a: b 20; b: a 30" "cycle = a, b" "heads = b, ROOT" "total = 40"',
    ),
    "cky": KindEntry(
        "parsing:CKYExercise",
        "Check CKY charts: cells, number of parses, best parse, inside probability.",
        'grammar="S -> NP VP / VP -> V NP / NP -> she | fish / V -> eats" sentence="she eats fish" "cell(1,3) = VP"',
    ),
    "decoding": KindEntry(
        "decoding:DecodingExercise",
        "Check decoding: temperature, top-k, top-p, penalties, greedy and beam search.",
        'probabilities="a 0.5, b 0.3, c 0.2" top_p=0.7 "kept = a, b" "q = [0.625, 0.375]"',
    ),
    "tokenization": KindEntry(
        "tokenization:TokenizationExercise",
        "Check tokenizers: merges of byte pairs, WordPiece scores and matches, Unigram segmentations.",
        'words="{low: 5, lower: 2, newest: 6, widest: 3}" max_merges=3 "merges = [e s, es t, est </w>]"',
    ),
    "metric": KindEntry(
        "metrics:MetricExercise",
        "Check metrics: BLEU, ROUGE, edit distance, F1, κ, nDCG, perplexity, KL, PMI, pass@k.",
        'metric=bleu candidate="the cat sat" reference="the cat sat down" max_n=2 "BLEU = 0.717"',
    ),
    "memory": KindEntry(
        "memory:MemoryExercise",
        "Check the memory of a model: weights, KV cache, optimizer, activations, largest batch.",
        'layers=32 kv_heads=8 head_dim=128 context=8192 precision=fp16 "kv_cache = 1.07 GB"',
    ),
    "ratio": KindEntry(
        "ratios:RatioExercise",
        "Check a share, ratio, threshold, inequality or optimum.",
        'left="4 T d^2" right="2 T^2 d" variable=T relation=< "T > 2d"',
    ),
    "scaling": KindEntry(
        "scaling:ScalingExercise",
        "Check compute, training time, scaling laws, rooflines and communication.",
        'parameters=7B tokens=2T flops="312 TFLOPs" mfu="40 %" gpus=512 "training_time = 15.2 days"',
    ),
    "calculation": KindEntry(
        "calculation:CalculationExercise",
        "Check a number computed from given quantities: formulas, arithmetic, units.",
        'value="6*N*D/R" given="N=124e6, D=300e9, R=9.75 TFLOP/s" unit=days "6*N*D/R = 265 days"',
    ),
    "optimizer": KindEntry(
        "optimizers:OptimizerExercise",
        "Check steps of an optimizer: SGD, momentum, AdaGrad, RMSprop, Adam, AdamW, clipping, learning-rate schedules.",
        'optimizer=adam start=1 gradients="0.5 0.2" learning_rate=0.1 "m_hat1 = 0.5" "theta1 = 0.9"',
    ),
    "numerics": KindEntry(
        "numerics:NumericsExercise",
        "Check numerics: rounding to float16, quantization, stable softmax, label smoothing, dropout, initialization.",
        'topic=quantization numbers="0.5 -1.27 0.3" "scale = 0.01" "quantized = [50, -127, 30]"',
    ),
    "position": KindEntry(
        "positions:PositionExercise",
        "Check position encodings: sinusoids, rotations, ALiBi slopes.",
        'scheme=sinusoidal width=4 position=3 "PE = [0.141, -0.990, 0.030, 1.000]"',
    ),
    "vector": KindEntry(
        "vectors:VectorExercise",
        "Check vectors and matrices: products, cosines, projections, SVD, eigenvectors, TF-IDF, co-occurrence, PPMI.",
        'expression="softmax(q @ K.T) @ V" given="q = [[1, 0]], K = [[1, 0], [0, 1]], V = [[2], [4]]" 2.538',
    ),
    "constructive": KindEntry(
        "constructive:ConstructiveExercise",
        "Check an example that was asked for: any values that satisfy the conditions are right.",
        'unknowns="q: 2" given="K = [[1, 0], [0, 1]]" condition="softmax(q @ K.T) = [0.5, 0.5]" "q = [3, 3]"',
    ),
    "code": KindEntry(
        "code:CodeExercise",
        "Check a function in a Python file: it is run, and compared with a reference.",
        "softmax mine.py",
    ),
}
