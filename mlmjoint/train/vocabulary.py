"""WordPiece vocabularies: counted from a text, or pruned from a larger one."""

from __future__ import annotations

from collections import Counter

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ..models.tokenizer import BERT_SPECIALS, build_tokenizer

SPECIALS = tuple(BERT_SPECIALS.values())
# A pruned vocabulary keeps these whatever the counts: unseen forms of known words break well.
ENDINGS = ("##s", "##es", "##ed", "##er", "##ers", "##est", "##ing", "##ly", "##ness", "##y")
ENDINGS += ("##man",)


def wordpiece(pieces, max_length: int) -> PreTrainedTokenizerFast:
    """BERT's uncased tokenizer over the given pieces: token i is pieces[i]."""
    return build_tokenizer(
        pieces,
        pre_tokenizers.BertPreTokenizer(),
        max_length,
        model=models.WordPiece,
        normalizer=normalizers.BertNormalizer(lowercase=True),
        decoder=decoders.WordPiece(),
    )


def learn_wordpiece(sentences, max_vocab: int, max_length: int) -> PreTrainedTokenizerFast:
    """A WordPiece vocabulary of the text's characters, continuations, and commonest words.

    Counted rather than merged: the merging trainer of `tokenizers` breaks ties differently from run
    to run, and the same seed must give the same weights.
    """
    splitter = wordpiece(SPECIALS, max_length).backend_tokenizer
    counts: Counter[str] = Counter()
    for sentence in sentences:
        plain = splitter.normalizer.normalize_str(sentence)
        counts.update(word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(plain))
    characters = sorted({c for word in counts for c in word})
    pieces = [*SPECIALS, *characters, *(f"##{c}" for c in characters)]
    longer = sorted((w for w in counts if len(w) > 1), key=lambda w: (-counts[w], w))
    return wordpiece([*pieces, *longer[: max(0, max_vocab - len(pieces))]], max_length)


def keep_tokens(full: Tokenizer, sentences, vocab_size: int | None) -> list[str]:
    """The tokens a pruned vocabulary keeps: specials first, then in the full vocabulary's order.

    Kept: every single ASCII character and its continuation (so a rare word breaks up instead of
    vanishing), common endings, and the tokens that the text uses most, up to vocab_size in all.
    None keeps the full vocabulary as it is.
    """
    vocabulary = full.get_vocab()
    order = sorted(vocabulary, key=vocabulary.get)
    if vocab_size is None:
        return order
    counts: Counter[str] = Counter()
    for encoding in full.encode_batch(list(sentences), add_special_tokens=False):
        counts.update(encoding.tokens)
    kept = {t for t in order if len(t.removeprefix("##")) == 1 and t.isascii()}
    kept |= {t for t in (*SPECIALS, *ENDINGS) if t in vocabulary}
    used = sorted((t for t in counts if t not in kept), key=lambda t: (-counts[t], vocabulary[t]))
    kept.update(used[: max(0, vocab_size - len(kept))])
    return [*SPECIALS, *(t for t in order if t in kept and t not in SPECIALS)]
