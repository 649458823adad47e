"""Zachary's karate club (1977): 34 members, 78 friendships, and the faction that each joined when the club split."""

import numpy as np

from lemma.data.graphs.compressed import Compressed
from lemma.data.graphs.raw import RawGraph
from lemma.data.hashing import text_sum

MEMBERS = 34
FACTIONS = ("Mr. Hi", "Officer")
"""Those who went with the teacher, and those who stayed with the club's president."""
WITH_MR_HI = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 17, 18, 20, 22}
FRIENDS = """
1: 2 3 4 5 6 7 8 9 11 12 13 14 18 20 22 32
2: 3 4 8 14 18 20 22 31
3: 4 8 9 10 14 28 29 33
4: 8 13 14
5: 7 11
6: 7 11 17
7: 17
9: 31 33 34
10: 34
14: 34
15: 33 34
16: 33 34
19: 33 34
20: 34
21: 33 34
23: 33 34
24: 26 28 30 33 34
25: 26 28 32
26: 32
27: 30 34
28: 34
29: 32 34
30: 33 34
31: 33 34
32: 33 34
33: 34
"""
"""Each member, and the friends with higher numbers."""


def karate() -> RawGraph:
    """The club as a graph; its members are known by their numbers alone, so that each is its own feature.

    >>> karate().edges.shape
    (2, 78)
    """
    lines = [line.split(":") for line in FRIENDS.split("\n") if line]
    pairs = [(int(one) - 1, int(other) - 1) for one, others in lines for other in others.split()]
    members = range(1, MEMBERS + 1)
    return RawGraph(
        names=[str(member) for member in members],
        labels=[FACTIONS[member not in WITH_MR_HI] for member in members],
        features=Compressed.identity(MEMBERS),
        edges=np.array(pairs, dtype=np.int64).T,
        weights=None,
        hash=text_sum(f"{FACTIONS}{sorted(WITH_MR_HI)}{FRIENDS}"),
        about="karate",
    )
