"""What is hidden in a haystack and asked for: each task is a function that draws a `Puzzle`.

multi_key, variable_tracking and common_words follow three categories of RULER (Hsieh et al. 2404.06654: retrieval,
multi-hop tracing, aggregation), each with one key for an answer, so that all are scored alike. The texts are our own,
and so are the numbers of needles, chains and entries: figures are not those of the paper.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hf_posswap.evaluation.fingerprints import fingerprint_of_settings
from hf_posswap.evaluation.retrieval.pieces import NAMES, Pieces

NEEDLES = 4
"""Keys in multi_key."""
CHAINS, HOPS = 3, 2
"""In variable_tracking: chains of assignments, and the assignments between the value and the variable asked for."""
FEWEST_ENTRIES = 8
"""In common_words: enough for one entry to be more frequent than the next ones."""


@dataclass(frozen=True)
class Puzzle:
    """Tokens without their surroundings."""

    needles: list[tuple[float, list[int]]]
    """Depth and tokens; those of the same depth stand in this order."""
    question: list[int]
    answer: list[int]

    @property
    def tokens(self) -> int:
        """How many there are."""
        return sum(len(needle) for _, needle in self.needles) + len(self.question) + len(self.answer)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of_settings([self.needles, self.question, self.answer])


Task = Callable[[Random, Pieces, int, float | None], Puzzle]
"""Takes the random source, the pieces, the tokens of puzzle and haystack together, and the depth; None: drawn."""


def one_key(random: Random, pieces: Pieces, room: int, depth: float | None) -> Puzzle:
    """A pass key (Mohtashami & Jaggi 2305.16300) at a depth, or at one drawn uniformly."""
    where = random.random() if depth is None else depth
    (key,) = pieces.keys(random, 1)
    needle = [*pieces.before_key("\nThe pass key is"), *key, *pieces.text(". Remember it.\n")]
    return Puzzle([(where, needle)], pieces.before_key("\nWhat is the pass key? The pass key is"), key)


def multi_key(random: Random, pieces: Pieces, room: int, depth: float | None) -> Puzzle:
    """Several keys with different names, at depths of their own; one is asked for."""
    names, keys = random.sample(NAMES, NEEDLES), pieces.keys(random, NEEDLES)
    needles = [
        (random.random(), [*pieces.before_key(f"\nThe pass key of {name} is"), *key, *pieces.text(".\n")])
        for name, key in zip(names, keys, strict=True)
    ]
    asked = f"\nWhat is the pass key of {names[0]}? The pass key of {names[0]} is"
    return Puzzle(needles, pieces.before_key(asked), keys[0])


def variable_tracking(random: Random, pieces: Pieces, room: int, depth: float | None) -> Puzzle:
    """Several chains of assignments, mixed, at depths of their own; the value of a chain's last variable is asked for.

    The paper asks for all variables of a value. With one chain the only number in the text would be the answer.
    """
    names, values = random.sample(NAMES, CHAINS * (HOPS + 1)), pieces.keys(random, CHAINS)
    needles: list[tuple[float, list[int]]] = []
    for chain, value in enumerate(values):
        first, *others = names[chain::CHAINS]
        lines = [[*pieces.before_key(f"\nVAR {first} ="), *value, *pieces.text("\n")]]
        for name, earlier in zip(others, [first, *others], strict=False):
            lines.append(pieces.text(f"\nVAR {name} = VAR {earlier}\n"))
        needles += zip(sorted(random.random() for _ in lines), lines, strict=True)
    last = names[CHAINS * HOPS]
    return Puzzle(needles, pieces.before_key(f"\nWhich value has {last}? The value of {last} is"), values[0])


def common_words(random: Random, pieces: Pieces, room: int, depth: float | None) -> Puzzle:
    """A list that fills the room, of words of fixed width (keys); the most frequent is asked for.

    A quarter of the entries are the same, two times an eighth are the runners-up, and each of the others is different.
    """
    bullet, header = pieces.before_key("\n-"), pieces.text("\nA list.")
    question = pieces.before_key("\nWhich entry of the list is the most frequent? The most frequent entry is")
    space = room - len(header) - len(question) - pieces.width
    entries = max(FEWEST_ENTRIES, space // (len(bullet) + pieces.width))
    many, some = entries // 4, entries // 8
    common, second, third, *rare = pieces.keys(random, 3 + entries - many - 2 * some)
    words = [common] * many + [second] * some + [third] * some + rare
    random.shuffle(words)
    return Puzzle([(1.0, header), *((1.0, [*bullet, *word]) for word in words)], question, common)
