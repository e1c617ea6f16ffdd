"""Joint filling against brute force: every filling of a tiny model, scored one by one."""

import itertools
import json
import math
import re
import resource

import pytest
import torch

import mlmjoint
from mlmjoint import InputError, JointFillMask, fill
from mlmjoint.cli.main import main
from mlmjoint.engine.forward.routes import log_probs_at
from mlmjoint.names import METHODS

TWO = "the man [MASK] walking [MASK] the street ."
THREE = "the [MASK] is [MASK] down the [MASK] ."


def chain(mlm, ids, masks, tokens, order):
    """log q of one filling, one plain forward pass for each mask; ``order`` may be "conf"."""
    ids, left, total = list(ids), list(range(len(masks))), 0.0
    while left:
        batch = torch.tensor([ids] * len(left))
        rows = log_probs_at(mlm.model, batch, torch.tensor([masks[s] for s in left]))
        turn = order[len(masks) - len(left)] if order != "conf" else None
        s = left[int(rows.amax(1).argmax())] if turn is None else turn
        total += float(rows[left.index(s), tokens[s]])
        ids[masks[s]] = tokens[s]
        left.remove(s)
    return total


@pytest.fixture(scope="module")
def truths(mlm):
    """Every chain of both texts over the whole vocabulary: {(text, order): {tokens: log q}}."""
    out = {}
    with torch.inference_mode():
        for text in (TWO, THREE):
            ids = mlm.encode(text)
            masks = [t for t, token in enumerate(ids) if token == mlm.mask_token_id]
            k = len(masks)
            for name, order in {"l2r": range(k), "r2l": range(k)[::-1], "conf": "conf"}.items():
                out[text, name] = tree(mlm, ids, masks, order)
    return out


def tree(mlm, ids, masks, order):
    """All fillings of a chain, by following the tree to its end, one level at a time."""
    level, k = [({}, torch.tensor(ids), 0.0)], len(masks)
    for depth in range(k):
        free = [[s for s in range(k) if s not in path] for path, *_ in level]
        batch = torch.stack([row for _, row, _ in level]).repeat_interleave(k - depth, 0)
        places = torch.tensor([masks[s] for some in free for s in some])
        log_probs = log_probs_at(mlm.model, batch, places).unflatten(0, (len(level), k - depth))
        following = []
        for (path, row, value), some, rows in zip(level, free, log_probs, strict=True):
            n = int(rows.amax(1).argmax()) if order == "conf" else some.index(order[depth])
            for token, log_prob in enumerate(rows[n].tolist()):
                written = row.clone()
                written[masks[some[n]]] = token
                following.append(({**path, some[n]: token}, written, value + log_prob))
        level = following
    return {tuple(path[s] for s in range(k)): value for path, _, value in level}


def best(table, n):
    return sorted(table.items(), key=lambda item: -item[1])[:n]


def agree(found, expected):
    assert [filling.token_ids for filling in found] == [tokens for tokens, _ in expected]
    values = [filling.log_prob for filling in found]
    assert values == pytest.approx([value for _, value in expected], abs=2e-5)
    assert found.certified and found.bound == pytest.approx(values[-1])


@pytest.mark.parametrize("text", [TWO, THREE])
@pytest.mark.parametrize("order", ["l2r", "r2l", "conf"])
def test_the_best_fillings_are_those_of_all_fillings(mlm, truths, text, order):
    table = truths[text, order]
    assert sum(map(math.exp, table.values())) == pytest.approx(1, abs=1e-6)
    found = fill(mlm, text, 7, order=order)
    agree(found, best(table, 7))
    assert found.passes < len(table) ** (1 - 1 / len(found[0].tokens)) * 1.2  # not the whole tree


def test_orders_by_name_position_and_method_are_the_same(mlm, truths):
    agree(fill(mlm, THREE, 3, order=(7, 4, 2)), best(truths[THREE, "r2l"], 3))
    agree(fill(mlm, TWO, 3, "chain-ab"), best(truths[TWO, "l2r"], 3))
    agree(fill(mlm, TWO, 3, "chain-conf"), best(truths[TWO, "conf"], 3))
    fixed = fill(mlm, TWO, 3, order="conf-fixed")  # with two masks, judged once is judged anew
    agree(fixed, best(truths[TWO, "conf"], 3))


@pytest.mark.parametrize("top", [1, 5, 60])
def test_means_of_both_chains(mlm, truths, top):
    ab, ba = truths[TWO, "l2r"], truths[TWO, "r2l"]
    mean = {x: math.log((math.exp(ab[x]) + math.exp(ba[x])) / 2) for x in ab}
    agree(fill(mlm, TWO, top), best(mean, top))
    agree(fill(mlm, TWO, top, "chain-geo"), best({x: (ab[x] + ba[x]) / 2 for x in ab}, top))


@pytest.mark.parametrize("method", METHODS)
def test_every_construction_agrees_with_its_table(mlm, method):
    q = mlmjoint.joint(mlmjoint.conditionals(mlm, mlm.pair(TWO)), method)
    expected = [((i, j), value) for i, j, value in q.top_cells(8)]
    found = fill(mlm, TWO, 8, method)
    assert [filling.token_ids for filling in found] == [cell for cell, _ in expected]
    if method != "chain-geo":  # certified in its order alone
        assert [f.log_prob for f in found] == pytest.approx([v for _, v in expected], abs=2e-5)
    assert found.certified


def test_separate_predictions_of_three_masks(mlm):
    ids = torch.tensor(mlm.encode(THREE))
    masks = (ids == mlm.mask_token_id).nonzero()[:, 0]
    with torch.inference_mode():
        rows = log_probs_at(mlm.model, ids.repeat(3, 1), masks)
    size = range(mlm.vocab_size)
    table = {
        x: float(rows[0, x[0]] + rows[1, x[1]] + rows[2, x[2]])
        for x in itertools.product(size, repeat=3)
    }
    agree(fill(mlm, THREE, 9, "mlm"), best(table, 9))


def test_candidates(mlm, truths):
    words = ["man", "dog", "is", "was"]
    ids = mlm.tokenizer.convert_tokens_to_ids(words)
    table = {x: v for x, v in truths[THREE, "l2r"].items() if {*x} <= {*ids}}
    kept = fill(mlm, THREE, 6, order="l2r", candidates=words, renormalise=False)
    agree(kept, best(table, 6))
    sets = [["man", "dog"], ids, ["street", "road", "."]]
    renormalised = fill(mlm, THREE, 100, order="conf", candidates=sets)
    assert len(renormalised) == 2 * 4 * 3 and renormalised.certified
    assert sum(math.exp(f.log_prob) for f in renormalised) == pytest.approx(1, abs=1e-5)
    pair = mlmjoint.conditionals(mlm, mlm.pair(TWO), tokens=(sorted(ids), sorted(ids)))
    for method in ("ag", "chain-mean", "mlm"):
        found = fill(mlm, TWO, 16, method, candidates=words)
        expected = mlmjoint.joint(pair, method).top_cells(16)
        assert [f.log_prob for f in found] == pytest.approx([v for *_, v in expected], abs=2e-5)


def test_budget_ends_the_search_with_an_honest_bound(mlm, truths):
    for order in ("l2r", "conf"):
        truth = best(truths[THREE, order], 4000)
        for budget in (1, 12, 25, 60):
            found = fill(mlm, THREE, 5, order=order, budget=budget)
            assert found.passes <= budget
            listed = {filling.token_ids for filling in found}
            missed = max(value for tokens, value in truth if tokens not in listed)
            assert missed <= found.bound + 2e-5
            if {t for t, _ in truth[:5]} != listed:
                assert not found.certified and "not certified" in found.certificate
    short = fill(mlm, TWO, 5, budget=4)
    assert short.passes <= 4 and not short.certified


def test_every_route_gives_the_same_fillings(mlm, monkeypatch):
    from mlmjoint.engine.forward.routes import Route
    from mlmjoint.tasks import predict

    expected = fill(mlm, THREE, 5)
    for name in ("head", "plain"):
        monkeypatch.setattr(predict, "choose_route", lambda model, *_, n=name: Route(model, n))
        agree(fill(mlm, THREE, 5), [(f.token_ids, f.log_prob) for f in expected])


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A tiny model with pieces that continue words."""
    from conftest import SPECIALS, WORDS, save_tiny_model

    words = [*SPECIALS, *WORDS, "##ing", "##s", "##y"]
    folder = tmp_path_factory.mktemp("models") / "pieces"
    return mlmjoint.load(save_tiny_model(folder, words, vocab_size=len(words)), device="cpu")


@pytest.mark.parametrize("order", ["l2r", "r2l", "conf"])
def test_words_of_two_pieces_compete_with_words_of_one(pieces, order):
    """Every word of one or two pieces in each gap, scored in the text with as many masks."""
    text, k = "the [MASK] is [MASK] .", 2
    vocabulary = pieces.tokenizer.get_vocab()
    special = {*pieces.tokenizer.all_special_tokens}
    inner = [i for t, i in vocabulary.items() if t[:2] == "##"]
    heads = [i for t, i in vocabulary.items() if t.isalnum() and t not in special]
    events = [(i,) for i in heads] + [(i, j) for i in heads for j in inner]
    few = sorted(events, key=lambda e: (e[0] * 7 + e[-1] * 3) % 11)[:6]
    table = {}
    with torch.inference_mode():
        for gaps in itertools.product(few, repeat=k):
            copies = [" ".join(["[MASK]"] * len(gap)) for gap in gaps]
            ids = pieces.encode(f"the {copies[0]} is {copies[1]} .")
            masks = [t for t, token in enumerate(ids) if token == pieces.mask_token_id]
            first = list(range(len(gaps[0])))
            second = list(range(len(gaps[0]), len(masks)))
            turn = {"l2r": first + second, "r2l": second + first}.get(order, "conf")
            tokens = [token for gap in gaps for token in gap]
            table[tuple(tokens)] = chain(pieces, ids, masks, tokens, turn) - k * math.log(2)
    found = fill(pieces, text, 20_000, order=order, words=True)
    assert len(found) == len(events) ** 2 and found.certified
    values = [(len(f.token_ids), f.token_ids, f.log_prob) for f in found]
    assert [v for *_, v in values] == sorted((v for *_, v in values), reverse=True)
    assert sum(math.exp(v) for *_, v in values) < 1
    listed = {ids: value for _, ids, value in values}
    for tokens, value in table.items():
        assert listed[tokens] == pytest.approx(value, abs=2e-5)
    top = fill(pieces, text, 5, order=order, words=True)
    agree(top, [(ids, value) for _, ids, value in values[:5]])
    assert all(len(f.tokens) == k for f in found)


def test_a_quarter_of_a_million_tokens_fit_in_a_gigabyte():
    """XLM-R's vocabulary over two small layers, with a head sharp enough to be certified."""
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM

    from mlmjoint.models.mlm import MLM

    torch.manual_seed(0)
    config = XLMRobertaConfig(
        vocab_size=250_002, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=40, initializer_range=0.7,
    )  # fmt: skip
    model = XLMRobertaForMaskedLM(config).eval()
    model.lm_head.decoder.weight.data *= 1.5

    class Names:
        mask_token_id, unk_token_id, all_special_ids = 250_001, 3, [0, 1, 2, 3, 250_001]

        def convert_ids_to_tokens(self, ids):
            return [str(i) for i in ids]

        def decode(self, ids, **_):
            return " ".join(map(str, ids))

    mlm = MLM(model, Names(), "xlm-r", torch.device("cpu"), 250_002, 38)
    ids = [0, 77, 250_001, 9, 250_001, 12, 250_001, 2]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pair = fill(mlm, [*ids[:6], 2], 10, budget=200)
    three = fill(mlm, ids, 10, budget=60)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1e6  # kilobytes
    assert len(pair) == len(three) == 10 and pair.passes <= 200
    assert pair[0].log_prob > pair[9].log_prob > -40


class TestPipeline:
    def test_one_mask_gives_what_transformers_gives(self, tiny_model):
        from transformers import pipeline

        theirs, ours = pipeline("fill-mask", tiny_model, device="cpu"), JointFillMask(tiny_model)
        text = "the man [MASK] walking ."
        for options in ({}, {"top_k": 2}, {"targets": ["is", "was"]}):
            for mine, its in zip(ours(text, **options), theirs(text, **options), strict=True):
                assert mine.keys() == its.keys()
                assert mine["score"] == pytest.approx(its["score"], abs=1e-6)
                assert {**mine, "score": 0} == {**its, "score": 0}
        assert ours([text]) == ours(text)
        assert [len(rows) for rows in ours([text, "a [MASK] ."])] == [5, 5]

    def test_several_masks_are_filled_together(self, mlm):
        rows, found = JointFillMask(mlm, top_k=3)(THREE), fill(mlm, THREE, 3)
        assert [tuple(row["token"]) for row in rows] == [f.token_ids for f in found]
        assert rows[0]["token_str"] == list(found[0].tokens)
        assert rows[0]["score"] == pytest.approx(math.exp(found[0].log_prob))
        assert rows[0]["sequence"] == found[0].text


@pytest.mark.parametrize(
    ("text", "options", "part"),
    [
        ("a dog .", {}, "no mask in 'a dog .'; write [MASK]"),
        ("[MASK] " * 17, {}, "has 19 tokens and"),
        (THREE, {"order": (2, 2, 7)}, "names position 2 twice"),
        (THREE, {"order": (2, 3, 7)}, "names 3, not a mask; the masks are at [2, 4, 7]"),
        (THREE, {"order": (2, 4)}, "names 2 of 3 masks"),
        (THREE, {"order": "up"}, "order is 'up'; choose l2r"),
        (THREE, {"method": "ag"}, "ag is a joint of two masks and the text has 3"),
        (TWO, {"method": "best"}, "unknown method 'best'"),
        (TWO, {"method": "ag", "order": "l2r"}, "both given"),
        (TWO, {"method": "hcb", "iterations": 3}, "hcb has no option 'iterations'"),
        (TWO, {"tol": 3}, "chain-mean has no option 'tol'"),
        (TWO, {"candidates": ["man", "zebra"]}, "candidate 'zebra' is not one token"),
        (TWO, {"candidates": [["man"]]}, "1 lists for 2 masks"),
        (TWO, {"candidates": [99]}, "candidate 99 lies outside"),
        (TWO, {"candidates": ["man"], "words": True}, "leave words=True out"),
        (TWO, {"words": True, "method": "ag"}, "takes a chain in one order, not ag"),
        (TWO, {"top": 0}, "top is 0"),
        (TWO, {"budget": 0.5}, "budget is 0.5"),
    ],
)
def test_bad_input_is_one_line(mlm, text, options, part):
    with pytest.raises(InputError, match=re.escape(part)):
        fill(mlm, text, **options)


def test_command(tiny_model, mlm, capsys, refused):
    words = ["fill", TWO, "--top", "3", "--model", str(tiny_model)]
    assert main([*words, "--json"]) == 0
    *rows, proof = map(json.loads, capsys.readouterr().out.splitlines())
    expected = fill(mlm, TWO, 3)
    assert [row["token_ids"] for row in rows] == [list(f.token_ids) for f in expected]
    assert proof == {
        "method": "chain-mean", "certified": True, "passes": expected.passes,
        "bound": expected.bound,
    }  # fmt: skip
    assert main([*words, "--order", "5", "3"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[-1].startswith("certified: ") and len(shown) == 6
    refused(["fill", "a dog", "--model", tiny_model])
