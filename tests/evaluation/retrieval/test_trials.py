"""Prompts: their exact length, where keys stand in them, and what they depend on."""

import random
import re
from collections import Counter
from typing import Any

import pytest
import torch

import hf_posswap as hp
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.retrieval.haystacks import FILLER, Haystack, RepeatedText, Stretches
from hf_posswap.evaluation.retrieval.pieces import Pieces
from hf_posswap.evaluation.retrieval.puzzles import Task, common_words, multi_key, one_key, variable_tracking
from hf_posswap.evaluation.retrieval.trials import Place, Trials

TASKS: dict[str, Task] = {
    "passkey": one_key,
    "multi_key": multi_key,
    "variable_tracking": variable_tracking,
    "common_words": common_words,
}


def trials_of(tokenizer: Any, task: str, length: int, *, haystack: Haystack | None = None, **fields: Any) -> Trials:
    pieces = Pieces(tokenizer, 5)
    surroundings = haystack or RepeatedText(pieces.text(FILLER))
    return Trials(**{
        "pieces": pieces, "haystack": surroundings, "tasks": {task: TASKS[task]}, "lengths": [length], "depths": None,
        "trials": 30, "seed": 0, **fields,
    })  # fmt: skip


def places(tokens: list[int], part: list[int]) -> list[int]:
    return [start for start in range(len(tokens)) if tokens[start : start + len(part)] == part]


def texts(tokenizer: Any, task: str, length: int) -> list[tuple[str, str]]:
    """Prompts and answers as text, for a tokenizer of bytes."""
    made = trials_of(tokenizer, task, length)
    decoded = [tokenizer.decode(prompt) for prompt in made.prompts(made.grid[0], range(30)).tolist()]
    return [(text[:-5], text[-5:]) for text in decoded]


@pytest.mark.parametrize("length", [400, 401, 777])
@pytest.mark.parametrize("task", TASKS)
def test_prompts_have_exactly_their_length_and_end_with_a_key(tokenizer: Any, task: str, length: int) -> None:
    made = trials_of(tokenizer, task, length)
    prompts = made.prompts(made.grid[0], range(30))
    assert prompts.shape == (30, length)
    assert {*prompts[:, -5:].flatten().tolist()} <= {*made.pieces.alphabet}
    assert len({tuple(prompt) for prompt in prompts.tolist()}) == 30
    front = made.pieces.bos
    assert all(prompt[: len(front)] == front for prompt in prompts.tolist())


@pytest.mark.parametrize("depth", [0.0, 0.25, 0.5, 1.0])
def test_the_needle_stands_at_its_depth(tokenizer: Any, depth: float) -> None:
    made = trials_of(tokenizer, "passkey", 300, depths=[depth])
    place = made.grid[0]
    for trial in range(30):
        prompt = made.prompt(place, trial)
        ((where, needle),), question = made.puzzle(place, trial)[0].needles, made.puzzle(place, trial)[0].question
        start, front = places(prompt, needle)[0], len(made.pieces.bos)
        size = 300 - front - len(needle) - len(question) - 5
        assert where == depth
        assert start == front + round(depth * size)
        around = prompt[front:start] + prompt[start + len(needle) : front + size + len(needle)]
        assert around == made.haystack.draw(random.Random(), size)
        assert len(places(prompt, prompt[-5:])) == 2  # in the needle, and the answer itself


def test_depths_are_drawn_uniformly(byte_tokenizer: Any) -> None:
    def starts(trials: int, **fields: Any) -> list[int]:
        made = trials_of(byte_tokenizer, "passkey", 300, **fields)
        prompts = [made.prompt(place, trial) for place in made.grid for trial in range(trials)]
        return [places(prompt, prompt[-5:])[0] for prompt in prompts]

    first, last = starts(1, depths=[0, 1])
    shares = torch.tensor(starts(400), dtype=torch.float).sub(first).div(last - first)
    assert shares.min() >= 0
    assert shares.max() <= 1
    assert torch.histc(shares, 4, 0, 1).sub(100).abs().max() < 45  # more than five standard deviations


def test_haystacks_are_stretches_of_documents(byte_tokenizer: Any) -> None:
    documents = [Document(torch.arange(1000, 1500)), Document(torch.arange(5000, 6000))]
    made = trials_of(byte_tokenizer, "passkey", 300, haystack=Stretches(documents), depths=[0.5], trials=200)
    starts = []
    for prompt in made.prompts(made.grid[0], range(200)).tolist():
        around = torch.tensor([token for token in prompt if token >= 1000])
        assert around.diff().eq(1).all()
        starts.append(int(around[0]))
    assert len({*starts}) > 150
    size = len(around)
    short = sum(start < 5000 for start in starts)
    expected = 200 * (501 - size) / (501 - size + 1001 - size)
    assert abs(short - expected) < 35  # five standard deviations
    exact = Stretches([Document(torch.arange(7))])
    assert exact.draw(random.Random(0), 7) == list(range(7))


def test_multi_key_has_four_keys_and_asks_for_one(byte_tokenizer: Any) -> None:
    firsts = Counter()
    for prompt, answer in texts(byte_tokenizer, "multi_key", 500):
        keys = dict(re.findall(r"\nThe pass key of (\w+) is (\d{5})\.\n", prompt))
        asked = re.search(r"\nWhat is the pass key of (\w+)\? The pass key of (\w+) is $", prompt)
        assert asked is not None
        assert asked[1] == asked[2]
        assert (len(keys), len({*keys.values()}), keys[asked[1]]) == (4, 4, answer)
        firsts[list(keys).index(asked[1])] += 1
    assert {*firsts} == {0, 1, 2, 3}  # the asked one is anywhere among them


def test_variable_tracking_follows_a_chain(byte_tokenizer: Any) -> None:
    for prompt, answer in texts(byte_tokenizer, "variable_tracking", 500):
        values: dict[str, str] = {}
        for name, value in re.findall(r"\nVAR (\w+) = (VAR \w+|\d+)\n", prompt):
            assert name not in values
            values[name] = values[value[4:]] if value.startswith("VAR") else value  # KeyError: used before it is set
        asked = re.search(r"The value of (\w+) is $", prompt)
        assert asked is not None
        assert values[asked[1]] == answer
        assert (len(values), Counter(values.values())) == (9, dict.fromkeys({*values.values()}, 3))
        assert f"VAR {asked[1]} = VAR" in prompt
        assert f"= VAR {asked[1]}\n" not in prompt  # the last of its chain


def test_common_words_have_one_most_frequent(byte_tokenizer: Any) -> None:
    for length in (200, 500):
        for prompt, answer in texts(byte_tokenizer, "common_words", length):
            words = Counter(re.findall(r"\n- (\d{5})", prompt))
            (first, often), (_, second), (_, third), *rare = words.most_common()
            many = words.total()
            assert (first, often, second, third) == (answer, many // 4, many // 8, many // 8)
            assert {count for _, count in rare} == {1}
            assert prompt.index("\nA list.") < len("\n- 12345")  # no room for one more


def test_a_trial_depends_on_its_own_place_alone(byte_tokenizer: Any) -> None:
    whole = trials_of(byte_tokenizer, "passkey", 300, lengths=[300, 200], depths=[1, 0.5, 0.5], trials=9)
    single = trials_of(byte_tokenizer, "passkey", 300, depths=[0.5], trials=2)
    assert whole.grid == [Place("passkey", length, depth) for length in (200, 300) for depth in (0.5, 1.0)]
    place = single.grid[0]
    assert torch.equal(whole.prompts(place, [7, 0, 1])[1:], single.prompts(place, range(2)))
    keys = [tuple(whole.prompt(each, 0)[-5:]) for each in whole.grid]
    assert (
        len({*keys, tuple(trials_of(byte_tokenizer, "passkey", 300, depths=[0.5], seed=1).prompt(place, 0)[-5:])}) == 5
    )


def test_batches_hold_every_trial_once(byte_tokenizer: Any) -> None:
    made = trials_of(byte_tokenizer, "passkey", 300, trials=10)
    for tokens, most in ((1, 1), (1000, 3), (10**6, 10)):
        batches = made.batches(made.grid[0], tokens)
        assert [trial for batch in batches for trial in batch] == list(range(10))
        assert max(map(len, batches)) == most


def test_the_global_random_state_is_not_touched(byte_tokenizer: Any) -> None:
    states = random.getstate(), torch.get_rng_state()
    made = trials_of(byte_tokenizer, "multi_key", 500)
    made.prompts(made.grid[0], range(3))
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_fingerprints_tell_prompts_apart(byte_tokenizer: Any, tokenizers: dict[str, Any]) -> None:
    one = trials_of(byte_tokenizer, "passkey", 300).checked_fingerprint()
    assert one == trials_of(byte_tokenizer, "passkey", 300).checked_fingerprint()
    others = [
        trials_of(tokenizers["gpt2"], "passkey", 300),
        trials_of(byte_tokenizer, "passkey", 301),
        trials_of(byte_tokenizer, "passkey", 300, seed=1),
        trials_of(byte_tokenizer, "passkey", 300, haystack=RepeatedText([1, 2])),
        trials_of(byte_tokenizer, "passkey", 300, haystack=Stretches([Document(torch.arange(400))])),
    ]
    assert len({one, *(each.checked_fingerprint() for each in others)}) == 6


def test_a_length_that_is_too_short_is_refused(tokenizer: Any) -> None:
    for task in TASKS:
        with pytest.raises(hp.EvaluationError, match=rf"{task} takes \d+ tokens with this tokenizer, not 20") as error:
            trials_of(tokenizer, task, 20).checked_fingerprint()
        found = re.search(r"takes (\d+) tokens", str(error.value))
        assert found is not None
        least = int(found[1])
        if task == "passkey":  # the others draw names of several lengths
            made = trials_of(tokenizer, task, least)
            made.checked_fingerprint()
            assert made.prompts(made.grid[0], range(30)).shape == (30, least)
            with pytest.raises(hp.EvaluationError, match=f"takes {least} tokens"):
                trials_of(tokenizer, task, least - 1).checked_fingerprint()
