"""Training a pair head: pairs by number, the losses by brute force, resumption, cards."""

import json
import math

import pytest
import torch

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.errors import InputError
from mlmjoint.models.pair_head import ConditionalHead, PairHead, decoder_of, load_head, pair_joint
from mlmjoint.train import pair_features
from mlmjoint.train import pair_head as training

LINES = ["the man is walking down the street .", "a dog was running across the road ."] * 6
LINES += ["a woman was walking across a street .", "the dog is running ."]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("\n".join(f"{line} {k}" for k, line in enumerate(LINES)))
    return path


def options(tiny_model, data, **more):
    few = {"rank": 2, "units": 8, "pairs": 40, "steps": 8, "batch_size": 4, "save_every": 4}
    return {"model": str(tiny_model), "data": (str(data),), "device": "cpu", **few, **more}


@pytest.fixture(scope="module")
def trained(tiny_model, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("head")
    return out, training.train_head(out, **options(tiny_model, data))


def test_pairs_depend_on_their_number_and_mask_what_they_say(mlm):
    text, again = (training.PairText(mlm, LINES, extra=0.5, seed=3) for _ in range(2))
    mask, more, adjacent = mlm.mask_token_id, 0, 0
    for number in range(200):
        pair, same = text.pair(number), again.pair(number)
        assert torch.equal(pair.input_ids, same.input_ids) and pair.positions == same.positions
        a, b = pair.positions
        ids = text.items[text.order[number % len(text.items)]][0]
        assert a < b and pair.gold == (ids[a], ids[b])
        masked = (pair.input_ids == mask).nonzero()[:, 0].tolist()
        assert {a, b} <= set(masked) and all(0 < t < len(ids) - 1 for t in masked)
        assert all(int(pair.input_ids[t]) == ids[t] for t in range(len(ids)) if t not in masked)
        more, adjacent = more + (len(masked) > 2), adjacent + (b == a + 1)
    assert 70 < more < 130 and adjacent > 100


def test_stored_features_are_those_of_each_pair_alone(mlm, tmp_path):
    text = training.PairText(mlm, LINES, seed=1)
    job = training.HeadJob(out=str(tmp_path), distil="ag", candidates=6)
    rows = pair_features.features_of(text, range(10), job)
    decoder = decoder_of(mlm)
    found = {tuple(row.flatten().tolist()): k for k, row in enumerate(rows["hidden"])}
    assert len(found) > 1
    for number in range(10):
        pair = text.pair(number)
        with torch.inference_mode():
            states = mlm.model.base_model(input_ids=pair.input_ids[None])[0][0]
        gap = (rows["hidden"].float() - states[list(pair.positions)]).abs().amax((1, 2))
        k = int(gap.argmin())
        assert float(gap[k]) < 5e-3 and tuple(rows["gold"][k].tolist()) == pair.gold
        tables = mlmjoint.conditionals(mlm, pair, tokens=tuple(rows["tokens"][k]))
        expected = mlmjoint.joint(tables, "ag").log_table()
        assert torch.allclose(rows["log_joint"][k], expected, atol=1e-4)
    head = PairHead(16, rank=3, units=8)
    batch = {key: values[:1] for key, values in rows.items()}
    log_w, log_p = head.components(decoder, batch["hidden"].float())
    sets = batch["tokens"][0]  # (2, k)
    cells = sum(
        log_w[0, r].exp() * torch.outer(*(log_p[0, s, r].exp()[sets[s]] for s in (0, 1)))
        for r in range(3)
    )  # (k, k)
    target = batch["log_joint"][0].double().exp()
    expected = (target * (target / (cells / cells.sum())).log()).sum()
    with torch.no_grad():
        loss = float(training.distil_loss(decoder)(head, batch))
    assert loss == pytest.approx(expected.item(), abs=1e-5)


def test_a_conditional_head_is_taught_by_the_model_with_one_word_written(mlm, tmp_path):
    text = pair_features.PairText(mlm, LINES, seed=1)
    job = training.HeadJob(out=str(tmp_path), kind="conditional")
    rows = pair_features.features_of(text, range(6), job)
    decoder, head = decoder_of(mlm), ConditionalHead(16, units=8)
    expected = []
    for number in range(6):
        pair = text.pair(number)
        for side in (0, 1):
            ids, place = pair.input_ids.clone(), pair.positions[side]
            both = mlm.model(input_ids=ids[None]).logits[0, place]
            ids[pair.positions[1 - side]] = pair.gold[1 - side]
            one = mlm.model(input_ids=ids[None]).logits[0, place]
            expected.append(-(one.softmax(0) * both.log_softmax(0)).sum().item())
    with torch.no_grad():  # untrained, it predicts as with both masked
        loss = float(training.taught_loss(decoder)(head, rows))
    assert loss == pytest.approx(sum(expected) / 12, abs=1e-2)


def test_killed_and_resumed_it_ends_in_the_same_head(
    tiny_model, data, trained, tmp_path, monkeypatch
):
    _, card = trained
    real, calls = training.gold_loss, []

    def breaks(decoder):
        loss = real(decoder)

        def counted(head, batch):
            calls.append(1)
            if len(calls) == 7:
                raise KeyboardInterrupt
            return loss(head, batch)

        return counted

    monkeypatch.setattr(training, "gold_loss", breaks)
    with pytest.raises(KeyboardInterrupt):
        training.train_head(tmp_path, **options(tiny_model, data))
    again = training.train_head(tmp_path, **options(tiny_model, data))
    assert len(calls) == 7 + 4  # resumed from step 4
    assert again["head"]["sha256"] == card["head"]["sha256"]
    with pytest.raises(InputError, match="another rank"):
        training.train_head(tmp_path, **options(tiny_model, data, rank=3))


def test_its_card_and_its_score(mlm, trained):
    out, card = trained
    assert json.loads((out / "card.json").read_text()) == card
    readme = (out / "README.md").read_text()
    assert f"{card['head']['parameters']:,} parameters" in readme and "train-head" in readme
    head = load_head(out)
    pair = mlm.pair("the [MASK] is [MASK] down the street .")
    assert pair_joint(mlm, head, pair).log_prob(5, 6) < 0
    for row in card["evaluation"]:
        assert row["p_ppl"] == pytest.approx(math.exp(row["p_nll"]), rel=1e-4)


WAYS = [{"tune": True}, {"distil": "chain-geo", "candidates": 5}]
WAYS += [{"kind": "conditional", "bf16": True}]


@pytest.mark.parametrize("more", WAYS)
def test_other_ways_to_train(mlm, tiny_model, data, tmp_path, more):
    before = mlm.fingerprint
    card = training.train_head(tmp_path, **options(tiny_model, data, **more))
    head = load_head(tmp_path)
    if "tune" in more:
        tuned = mlmjoint.load(tmp_path / "model", device="cpu")
        assert tuned.fingerprint != before and head.about["fingerprint"] == tuned.fingerprint
        assert pair_joint(tuned, head, tuned.pair("[MASK] [MASK] is running .")).log_prob(5, 6) < 0
        with pytest.raises(InputError, match="trained for"):
            pair_joint(mlm, head, mlm.pair("[MASK] [MASK] is running ."))
    assert all(f"--{key}" in card["command"] for key in more)


def test_the_loss_falls_and_the_command_says_so(tmp_path, capsys):
    words = ["train-head", "--model", "toy", "--data", "toy", "--out", str(tmp_path / "head")]
    words += ["--pairs", "500", "--steps", "40", "--rank", "2", "--units", "32"]
    words += ["--device", "cpu", "--save-every", "40"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert shown.count("P-PPL") == 2 and "head written to" in shown
    journal = (tmp_path / "head" / "progress.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in journal]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--rank 0", "rank is 0; give a whole number, 1 or more"),
        ("--extra 2", "extra is 2.0; give a share from 0 to 1"),
        ("--tune --distil ag", "--distil needs a frozen model"),
        ("--kind conditional --tune", "is taught by the frozen model; leave out --tune"),
    ],
)
def test_mistakes_are_one_line(words, part, refused, tmp_path):
    refused(["train-head", "--model", "toy", "--out", tmp_path, *words.split()], part)
