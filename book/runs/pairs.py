"""Pairs that drivers measure: drawn of a corpus, of the toy world, or those of a stored study."""

import random

from mlmjoint.text import ToyWorld, corpus, draw_pair, encode, text_vocabulary


def drawn(mlm, name: str, n: int, scheme: str, seed: int):
    """(sentence's id, pair) of n sentences of a corpus."""
    for item in encode(corpus(name, n, seed), mlm):
        at = draw_pair(item.input_ids, item.special, scheme, seed, item.sentence.id)
        yield item.sentence.id, mlm.pair(item.input_ids, sorted(at))


def of_toy_world(world: ToyWorld, n: int, seed: int) -> dict[str, list[tuple[list[int], int, int]]]:
    """Token ids and two positions of n sentences, a pair of each scheme."""
    rng, pairs = random.Random(seed), {"contiguous": [], "random": []}
    for sentence in world.sample(n, seed):
        ids = [world.ids[word] for word in ("[CLS]", *sentence.words, "[SEP]")]
        a = rng.randrange(1, len(sentence.words))
        pairs["contiguous"].append((ids, a, a + 1))
        pairs["random"].append((ids, *sorted(rng.sample(range(1, len(ids) - 1), 2))))
    return pairs


def of_study(study, mlm, data: str):
    """(record, pair, truth or None) for each record of a study, its sentences drawn again."""
    described = study.manifest["data"]
    sentences = corpus(data, described["sentences"], study.manifest["seed"])
    assert sentences.fingerprint == described["fingerprint"], "other sentences than the study's"
    text = {sentence.id: sentence.text for sentence in sentences}
    kept = text_vocabulary(mlm)
    for record in study.records:
        ids = mlm.encode(text[record["sentence"]])
        pair, truth = mlm.pair(ids, record["positions"]), None
        if sentences.truth is not None:
            truth = sentences.truth.world.true_joint(ids, *record["positions"])[kept][:, kept]
        yield record, pair, truth
