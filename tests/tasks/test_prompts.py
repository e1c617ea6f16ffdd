"""Choices and zero-shot labels against tables of joints; the questions of the cloze."""

import json

import pytest
import torch

from book.runs import cloze
from mlmjoint import conditionals, joint, load_head, pair_joint
from mlmjoint.errors import InputError
from mlmjoint.tasks.prompts import choose, zero_shot
from mlmjoint.text import ToyWorld

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


def test_a_choice_is_among_fillings_of_a_joint_over_more_words(toy):
    fillings = [("the", "dog"), ("a", "tea"), ("the", "tea"), ("a", "dog")]
    text, methods = "the man sees [MASK] [MASK] .", ["mlm", "mrf", "ag"]
    tables = conditionals(toy, toy.pair(text))
    ids = torch.tensor([toy.tokenizer.convert_tokens_to_ids(f) for f in fillings])  # (4, 2)
    everything = choose(toy, text, fillings, methods, around=toy.vocab_size)
    for method in methods:
        cells = joint(tables, method).log_prob(*ids.T)
        assert everything[method].tolist() == pytest.approx(cells.log_softmax(0).tolist(), abs=1e-4)
    alone = choose(toy, text, fillings, methods, around=0)
    assert alone["mlm"].tolist() == pytest.approx(everything["mlm"].tolist(), abs=1e-4)
    assert (alone["mrf"] - everything["mrf"]).abs().max() > 1e-3
    assert choose(toy, toy.encode(text), fillings, ["mlm"])["mlm"].exp().sum() == pytest.approx(1)


def test_wrong_fillings_stand_between_the_same_words_in_other_sentences(toy, tmp_path):
    texts = [s.text for s in ToyWorld().sample(600, 5)]
    path = tmp_path / "pairs.jsonl"
    rows = [{"premise": t, "hypothesis": u} for t, u in zip(texts[::2], texts[1::2], strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = cloze.questions(toy, path, 12)
    everything = [toy.encode(text) for text in texts]
    assert len(asked) == 12
    pictures = {next(k for k, row in enumerate(rows) if text in row.values()) for text, *_ in asked}
    assert len(pictures) == 12, "one sentence for each premise"
    for text, ids, t, fillings in asked:
        assert fillings[0] == tuple(ids[t : t + 2]) and ids == toy.encode(text)
        assert [len({f[k] for f in fillings}) for k in (0, 1)] == [cloze.OPTIONS] * 2
        for a, b in fillings:
            frame = [ids[t - 1], a, b, ids[t + 2]]
            assert any(frame == x[k : k + 4] for x in everything for k in range(len(x)))
    _, ids, t, fillings = asked[0]
    answers = cloze.answers(toy, ids, t, fillings, ["mlm", "ag"], None)
    found = answers["mlm"]
    tables = conditionals(toy, toy.pair(ids, (t, t + 1)))
    log_p = tables.log_p_a, tables.log_p_b
    best = [int(p[[f[k] for f in fillings]].argmax()) for k, p in enumerate(log_p)]
    assert found["cell"] == f"{best[0]}{best[1]}"
    own = [float(p[[f[k] for f in fillings]].log_softmax(0)[0]) for k, p in enumerate(log_p)]
    assert found["nll"] == pytest.approx([-sum(own)], abs=6e-3)
    assert set(answers["ag"]) - set(found) == {"information"}
