"""Tokenizers made on the spot, of the kinds that tell characters in different ways."""

from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

TRAINED_ON = [
    "the cats and the dogs read a book",
    "don't look: naïve cafés, 12 cats' books",
    "über die Katzen 猫 🙂",
] * 5


def _bpe(pre_tokenizer: Any, alphabet: list[str], **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    return tokenizer


def _byte_level() -> Tokenizer:
    """As GPT-2: pieces of bytes, spaces in front."""
    tokenizer = _bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet())
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _trimmed() -> Tokenizer:
    """As RoBERTa: the same, but spaces belong to no token."""
    tokenizer = _byte_level()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def _one_word() -> Tokenizer:
    """As LLaMA 2: a whole text is one word, spaces are letters, and unknown characters fall back to bytes."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    letters = sorted(set("▁etaonsdhkrbciglmpuwyvfxjq.,:'ABCDTKM1234567890"))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters, "▁t", "he", "▁the", "ca", "cat"]
    vocab = {name: i for i, name in enumerate(names)}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("c", "a"), ("ca", "t")]
    tokenizer.model = models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    return tokenizer


def _word_piece() -> Tokenizer:
    """As BERT: lower case, accents off, words and punctuation apart."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        TRAINED_ON, trainers.WordPieceTrainer(vocab_size=120, special_tokens=specials, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer


FAST = {"byte_level": _byte_level, "trimmed": _trimmed, "one_word": _one_word, "word_piece": _word_piece}


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Any]:
    """`tokenizer_of(name)`: a tokenizer of `FAST`, or "bytes" for a slow one of bytes."""
    made: dict[str, Any] = {"bytes": ByT5Tokenizer()}

    def of(name: str) -> Any:
        if name not in made:
            made[name] = PreTrainedTokenizerFast(tokenizer_object=FAST[name](), model_max_length=16)
        return made[name]

    return of


@pytest.fixture
def tokenizer(tokenizer_of: Callable[[str], Any]) -> Any:
    return tokenizer_of("byte_level")
