"""Which tokens of a vocabulary begin a word, and which continue one."""

import torch

MARKS = ("Ġ", "▁")  # byte-level BPE's and SentencePiece's sign of a space before the token


def word_pieces(mlm) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sorted ids of the pieces that begin a word after a space, at the start of a text, and that
    continue one. Pieces of letters and digits only: punctuation is not a word.
    """
    inside, initial, continued = [], [], []
    limit = min(mlm.vocab_size, mlm.embedded)
    vocabulary = mlm.tokenizer.get_vocab()
    mark = next((m for m in MARKS if sum(t.startswith(m) for t in vocabulary) > 1), None)
    for token, index in vocabulary.items():
        if index in mlm.tokenizer.all_special_ids or index >= limit:
            continue
        if mark is None:  # WordPiece
            body, starts, continues = token.removeprefix("##"), token[:2] != "##", token[:2] == "##"
        else:
            body, starts = token.removeprefix(mark), token.startswith(mark)
            continues = not starts
        if body.isalnum():
            (inside if starts else continued).append(index)
            if starts or (mark == MARKS[0] and continues):
                initial.append(index)
    return tuple(
        torch.tensor(sorted(ids), dtype=torch.long) for ids in (inside, initial, continued)
    )
