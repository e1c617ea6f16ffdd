"""Sentence scores against brute force, and against minicons' numbers (minicons_numbers.py)."""

import itertools
import json
import math
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
import torch
from minicons_numbers import SENTENCES, save

import mlmjoint
from mlmjoint import InputError, score
from mlmjoint.cli.main import main
from mlmjoint.engine.forward.routes import log_probs_at
from mlmjoint.tasks.score import SCORES

TEXTS = ["the man is walking .", "a dog", "the dog was running down the street .", "dog"]
MINICONS = json.loads((Path(__file__).parent / "minicons.json").read_text())["scores"]


def term(mlm, ids, i, masked):
    """log p(x_i | what is not masked), one plain forward pass."""
    row = torch.tensor([ids])
    row[0, list(masked)] = mlm.mask_token_id
    with torch.inference_mode():
        log_probs = log_probs_at(mlm.model, row, torch.tensor([i]))[0]
    return float(log_probs[ids[i]]), float(log_probs.max())


def chain(mlm, ids, order):
    """Tokens in an order of positions, or the surest one next."""
    left, total = list(range(1, len(ids) - 1)), {}
    while left:
        terms = {i: term(mlm, ids, i, left) for i in left}
        i = max(left, key=lambda i: terms[i][1]) if order == "conf" else order[len(total)]
        total[i] = terms[i][0]
        left.remove(i)
    return [total[i] for i in sorted(total)]


def slow(mlm, text, method):
    """The parts of a score by their definition."""
    ids = mlm.encode(text)
    inner = list(range(1, len(ids) - 1))
    if method in ("pll", "pll-word"):  # every word of this model is one token
        return [term(mlm, ids, i, [i])[0] for i in inner]
    if method == "pair":
        both = [[{i, j} & {*inner} for j in (i - 1, i + 1)] for i in inner]
        terms = [
            [term(mlm, ids, i, m | {i})[0] for m in masks]
            for i, masks in zip(inner, both, strict=True)
        ]
        return [sum(pair) / 2 for pair in terms]
    return chain(mlm, ids, {"l2r": inner, "r2l": inner[::-1]}.get(method, "conf"))


@pytest.mark.parametrize("method", [name for name in SCORES if name != "orders"])
def test_each_score_is_its_definition(mlm, method):
    expected = [slow(mlm, text, method) for text in TEXTS]
    parts = score(mlm, TEXTS, method, per_token=True)
    for text, part, values in zip(TEXTS, parts, expected, strict=True):
        assert [token for token, _ in part] == text.split()
        assert [value for _, value in part] == pytest.approx(values, abs=3e-5)
    assert score(mlm, TEXTS, method) == pytest.approx([*map(sum, expected)], abs=3e-5)
    assert score(mlm, TEXTS[0], method) == pytest.approx(sum(expected[0]), abs=3e-5)


def test_a_mixture_of_orders_is_the_mean_of_their_probabilities(mlm):
    """Of one token every order is the same; of two, a mixture of many is the mean of both."""
    assert score(mlm, "dog", "orders") == pytest.approx(score(mlm, "dog", "l2r"), abs=1e-6)
    ab, ba = (math.exp(score(mlm, "a dog", name)) for name in ("l2r", "r2l"))
    single = [math.exp(score(mlm, "a dog", "orders", orders=1, seed=s)) for s in range(6)]
    for value in single:
        assert min(abs(value - ab), abs(value - ba)) < 1e-6
    mixed = math.exp(score(mlm, "a dog", "orders", orders=40, seed=3))
    shares = (mixed - ba) / (ab - ba) * 40
    assert shares == pytest.approx(round(shares), abs=1e-2) and 5 < shares < 35
    assert score(mlm, TEXTS, "orders", seed=1) == score(mlm, TEXTS, "orders", seed=1)


@pytest.mark.parametrize("method", ["l2r", "r2l", "conf", "orders"])
def test_proper_scores_sum_to_one_over_the_sentences_of_a_length(mlm, method, monkeypatch):
    """Over all pairs of tokens, special ones included, by their ids."""
    size = range(mlm.vocab_size)
    texts = {f"{i} {j}": [2, i, j, 3] for i, j in itertools.product(size, size)}
    monkeypatch.setattr(type(mlm), "encode", lambda self, text: texts[text])
    monkeypatch.setattr(type(mlm), "special_ids", frozenset())
    monkeypatch.setattr(type(mlm), "mask_token_id", 4)
    from mlmjoint.tasks import score as module

    real = module._Text.__init__

    def inner(self, mlm, text, method):
        self.ids, self.places = torch.tensor(texts[text]), [1, 2]
        self.words = self.parts = None

    monkeypatch.setattr(module._Text, "__init__", inner)
    total = sum(map(math.exp, score(mlm, list(texts), method, orders=3)))
    assert total == pytest.approx(1, abs=3e-5)
    assert real is not inner


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minicons")
    out = {kind: save(kind, folder / kind) for kind in ("Bert", "Roberta", "DistilBert")}
    return {name: mlmjoint.load(out.get(name, name), device="cpu") for name in MINICONS}


@pytest.mark.parametrize("name", MINICONS)
@pytest.mark.parametrize("method", ["pll", "pll-word"])
def test_scores_are_those_of_minicons(models, name, method):
    parts = score(models[name], SENTENCES, method, per_token=True)
    values = [[value for _, value in part] for part in parts]
    for mine, theirs in zip(values, MINICONS[name][method], strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)
    assert sum(values[0]) != pytest.approx(score(models[name], SENTENCES[0], "l2r"), abs=1e-3)


def test_words_of_several_pieces_distinguish_the_two():
    one, other = (sum(MINICONS["en-small"][name][2]) for name in ("pll", "pll-word"))
    assert one - other > 1


@pytest.mark.parametrize("hooked", [False, True])
def test_every_route_gives_the_same_scores(models, hooked, monkeypatch):
    """A model of another architecture, or one with hooks, runs in full."""
    from mlmjoint.engine.forward import routes
    from mlmjoint.tasks import predict

    mlm, many = models["Roberta"], SENTENCES * 8  # as many tokens as the packed encoder wants
    expected = {name: score(mlm, many, name)[:6] for name in ("pll", "pair", "conf")}
    monkeypatch.setattr(routes, "_verdicts", WeakKeyDictionary())
    if hooked:
        for module in (predict, routes):
            monkeypatch.setattr(module, "is_hooked", lambda model: True)
    else:
        monkeypatch.setattr(routes, "read_stack", lambda model: None)
    for name, values in expected.items():
        assert score(mlm, many, name)[:6] == pytest.approx(values, abs=1e-4)


@pytest.mark.parametrize("name", ["en-small", "Roberta"])
def test_many_tokens_take_the_encoder_and_get_the_same_scores(models, name, monkeypatch):
    """From 257 tokens on the weights are packed, and the last layer runs where it is read. A
    question that several texts share is asked once.
    """
    from mlmjoint.engine.forward.encoder import Encoder

    mlm, calls, fast = models[name], [], Encoder.hidden_at
    many = [*SENTENCES, *TEXTS] * 8
    questions = sum(len(mlm.encode(text)) - 2 for text in many)
    assert questions > 256

    def counted(self, ids, positions):
        calls.append(len(ids))
        return fast(self, ids, positions)

    monkeypatch.setattr(Encoder, "hidden_at", counted)
    for method in ("pll", "l2r"):
        few = [score(mlm, text, method) for text in many[: len(many) // 8]]
        assert not calls
        assert score(mlm, many, method) == pytest.approx(few * 8, abs=1e-4)
        assert 0 < sum(calls) < questions / 2
        calls.clear()


@pytest.mark.parametrize(
    ("text", "options", "part"),
    [
        ("a dog", {"method": "best"}, "unknown score 'best'"),
        ("a [MASK] .", {}, "holds a mask"),
        ("[CLS]", {}, "has no tokens to score"),
        (" ".join(["dog"] * 15), {}, "has 17 tokens and"),
        ("a dog", {"method": "orders", "per_token": True}, "leave per_token out"),
        ("a dog", {"orders": 0}, "orders is 0"),
    ],
)
def test_bad_input_is_one_line(mlm, text, options, part):
    with pytest.raises(InputError, match=part):
        score(mlm, text, **options)


class TestCommand:
    @pytest.fixture
    def words(self, text, tiny_model):
        return ["score", str(text), "--model", str(tiny_model), "--method", "l2r"]

    def test_scores_are_printed_in_the_order_of_the_file(self, words, text, mlm, capsys):
        assert main(words) == 0
        shown = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert [line[1] for line in shown] == text.read_text().splitlines()
        values = score(mlm, [line[1] for line in shown], "l2r")
        assert [float(line[0]) for line in shown] == pytest.approx(values, abs=1e-3)
        assert main([*words, "--json", "--per-token"]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["text"] for row in rows] == [line[1] for line in shown]
        assert [row["log_prob"] for row in rows] == pytest.approx(values, abs=3e-5)
        assert [token for token, _ in rows[0]["tokens"]] == rows[0]["text"].split()

    def test_an_interrupted_file_is_continued(self, words, tmp_path, capsys, monkeypatch):
        from mlmjoint.cli import score as command

        out = tmp_path / "scores.jsonl"
        assert main([*words, "--out", str(out)]) == 0
        whole = out.read_text()
        lines = whole.splitlines(keepends=True)
        out.write_text("".join(lines[:9]) + lines[9][:20])  # cut short in the tenth line
        monkeypatch.setattr(command, "CHUNK", 4)
        assert main([*words, "--out", str(out)]) == 0
        redone = [json.loads(line) for line in out.read_text().splitlines()]
        first = [json.loads(line) for line in lines]
        assert [{**r, "log_prob": 0} for r in redone] == [{**r, "log_prob": 0} for r in first]
        values = ([row["log_prob"] for row in rows[1:]] for rows in (redone, first))
        assert next(values) == pytest.approx(next(values), abs=3e-5)
        assert main([*words[:-1], "r2l", "--out", str(out)]) == 2
        assert "holds scores by another method" in capsys.readouterr().err
