"""Zero-shot labels against sums over the table of the joint."""

import pytest
import torch

from mlmjoint import conditionals, joint, load_head, pair_joint
from mlmjoint.errors import InputError
from mlmjoint.tasks.prompts import zero_shot

PAIRS = {"down": [("the", "dog"), ("a", "tea")], "up": [("the", "tea")]}
PROMPT = "{text} sees [MASK] [MASK] ."


def test_a_label_has_the_mass_of_its_pairs_within_the_candidate_sets(toy):
    methods = ["mlm", "ag", "chain-geo", "head"]
    head = load_head("toy")
    found = zero_shot(toy, "the man", methods, PAIRS, PROMPT, head)
    ids = {w: toy.tokenizer.convert_tokens_to_ids(w) for w in ("a", "the", "dog", "tea")}
    pair = toy.pair("the man sees [MASK] [MASK] .")
    tokens = [ids["a"], ids["the"]], [ids["dog"], ids["tea"]]
    tables = conditionals(toy, pair, tokens=tokens)
    for method in methods:
        if method == "head":
            table = pair_joint(toy, head, pair).log_table()[tokens[0]][:, tokens[1]].exp()
        else:
            table = joint(tables, method).log_table().double().exp()
        mass = torch.stack([table[1, 0] + table[0, 1], table[1, 1]])
        assert found[method].exp() == pytest.approx(mass / mass.sum(), rel=1e-4)
    product = found["mlm"].exp() - found["ag"].exp()
    assert product.abs().max() > 1e-6, "the constructions must differ"


def test_a_long_text_loses_its_last_words_and_bad_words_are_named(toy):
    long = zero_shot(toy, "the man " * 40, ["chain-ab"], PAIRS, PROMPT)["chain-ab"]
    room = toy.max_length - len(toy.encode("sees [MASK] [MASK] ."))
    short = zero_shot(toy, "the man " * (room // 2), ["chain-ab"], PAIRS, PROMPT)["chain-ab"]
    assert torch.allclose(long, short, atol=1e-5)
    with pytest.raises(InputError, match="'xyzzy' is not one token of toy"):
        zero_shot(toy, "the man", ["mlm"], {"a": [("the", "xyzzy")], "b": [("a", "tea")]}, PROMPT)
    with pytest.raises(InputError, match="shorten it"):
        zero_shot(toy, "the man", ["mlm"], PAIRS, "{text} " + "the " * 60 + "[MASK] [MASK]")
