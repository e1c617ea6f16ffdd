"""Build fast tokenizers whose tokens are whole words, pieces of words, letters or atoms."""

from collections.abc import Sequence

from tokenizers import Tokenizer, models, processors
from transformers import PreTrainedTokenizerFast

BERT_SPECIALS = {
    f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")
}


def build_tokenizer(
    vocabulary: Sequence[str],
    pre_tokenizer,
    max_length: int,
    specials=BERT_SPECIALS,
    model=models.WordLevel,
    **parts,
) -> PreTrainedTokenizerFast:
    """Token i is ``vocabulary[i]``, found in what ``pre_tokenizer`` splits a text into.

    ``model`` looks tokens up there: whole words, or pieces if it is ``WordPiece``. ``parts`` are
    other parts of the tokenizer, such as its ``normalizer`` or ``decoder``.
    """
    ids = {word: index for index, word in enumerate(vocabulary)}
    backend = Tokenizer(model(ids, unk_token=specials["unk_token"]))
    backend.pre_tokenizer = pre_tokenizer
    for name, part in parts.items():
        setattr(backend, name, part)
    first, last = specials["cls_token"], specials["sep_token"]
    backend.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(first, ids[first]), (last, ids[last])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=max_length, **specials
    )
