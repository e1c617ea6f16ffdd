"""Studies: records with everything they promise, drawn and measured as described."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from small_study import SENTENCES, mlm, snapshot, stripped, text, whole  # noqa: F401

import mlmjoint
from mlmjoint.cli.main import build_parser, main
from mlmjoint.cli.study import plans
from mlmjoint.errors import InputError
from mlmjoint.studies import records
from mlmjoint.studies.measure import variants
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.study import study
from mlmjoint.text import corpora, draw_pair, text_vocabulary


class TestRecords:
    def test_one_line_per_sentence_with_all_that_was_promised(self, whole):
        assert len(whole.records) == len(SENTENCES)
        for record in whole.records:
            assert len(record["sentence"]) == 16
            assert record["distance"] == record["positions"][1] - record["positions"][0] > 0
            assert list(record["methods"]) == list(mlmjoint.METHODS)
            for row in record["methods"].values():
                assert {"u_nll", "p_nll", "a_kl", "g_kl"} <= set(row)
            assert {"residual", "passes", "objective"} <= set(record["methods"]["ag"])
            assert len(record["jsd"]) == 45
            assert record["incompatibility"] > 0
            assert record["methods"]["ag"]["residual"] <= 1e-5

    def test_numbers_are_those_of_the_package(self, mlm, whole):
        record = whole.records[5]
        ids = mlm.encode(SENTENCES[5])
        assert record["gold"] == [ids[p] for p in record["positions"]]
        kept = torch.tensor([1, *range(5, mlm.vocab_size)])  # [UNK] is text, [PAD] is not
        tables = mlmjoint.conditionals(
            mlm, mlm.pair(SENTENCES[5], record["positions"]), tokens=(kept, kept)
        )
        expected = mlmjoint.metrics(tables, mlmjoint.METHODS)
        for method in mlmjoint.METHODS:
            for key in ("u_nll", "p_nll", "a_kl", "g_kl"):
                found = record["methods"][method][key]
                assert found == pytest.approx(expected[method][key], rel=1e-5, abs=1e-9)
        assert record["jsd"]["mrf ag"] == pytest.approx(expected["jsd"]["mrf", "ag"], rel=1e-5)
        ag = mlmjoint.joint(tables, "ag")
        assert record["methods"]["ag"]["objective"] == pytest.approx(ag.objective, rel=1e-4)

    def test_pairs_are_drawn_by_seed_and_sentence(self, mlm, text, whole):
        ids_of = {s.id: s.text for s in corpora.corpus(f"text:{text}")}
        for record in whole.records:
            ids = mlm.encode(ids_of[record["sentence"]])
            special = [token in mlm.special_ids for token in ids]
            key = record["sentence"]
            assert tuple(record["positions"]) == draw_pair(ids, special, "random", 0, key)

    def test_no_sentence_and_no_path_is_written(self, whole, text):
        for name, data in snapshot(whole.folder).items():
            for word in (b"walking", b"street", str(text.parent).encode(), b"/tmp"):
                assert word not in data, name

    def test_manifest_says_what_was_done(self, mlm, whole):
        manifest = whole.manifest
        assert manifest["model"]["fingerprint"] == mlm.fingerprint
        assert manifest["data"]["name"] == "text:sentences.txt"
        assert manifest["data"]["sentences"] == manifest["n"] == len(SENTENCES)
        assert manifest["vocabulary"] == mlm.vocab_size - 4
        (environment,) = manifest["environments"]
        assert environment["versions"]["torch"] == torch.__version__
        assert manifest["command"].startswith("mlmjoint study --model tiny --data text:sentences")

    def test_manifest_calls_the_data_by_the_name_given(self, mlm, text, tmp_path):
        options = {"data_name": "poems", "source": "a book", "extras": False, "methods": ["mlm"]}
        manifest = study(mlm, f"text:{text}", tmp_path / "out", n=1, **options).manifest
        assert (manifest["data"]["name"], manifest["data"]["source"]) == ("poems", "a book")
        assert "--data text:sentences.txt --pairs random --data-name poems" in manifest["command"]
        again = {**options, "source": None}  # as somebody resumes it with the command alone
        manifest = study(mlm, f"text:{text}", tmp_path / "out", n=2, **again).manifest
        assert (manifest["n"], manifest["data"]["source"]) == (2, "a book")

    def test_manifest_s_command_resumes_the_study(self, tiny_model, text, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for source in (tiny_model, text):
            (tmp_path / source.name).symlink_to(source)
        options = ["--methods", "mlm", "--no-extras", "--dtype", "float64", "--n", "2"]
        options += ["--pairs", "contiguous", "--seed", "3", "--out", "out"]
        assert main(["study", "--model", tiny_model.name, "--data", f"text:{text}", *options]) == 0
        before = snapshot(tmp_path / "out")
        command = records.load_study(tmp_path / "out").manifest["command"]
        assert main(shlex.split(command)[1:]) == 0
        assert snapshot(tmp_path / "out") == before

    def test_variants_are_the_joints_they_name(self, mlm, whole):
        record = whole.records[2]
        pair = mlm.pair(SENTENCES[2], record["positions"])
        kept = text_vocabulary(mlm)
        tables = mlmjoint.conditionals(mlm, pair, tokens=(kept, kept))
        order = tables.log_p_a.argsort(descending=True)
        options = {
            "ag-40": ("ag", {"solver": "published", "iterations": 40}),
            "hcb-ba": ("hcb", {"direction": "ba"}),
            "hcb-2": ("hcb", {"pivot": int(order[1])}),
            "hcb-10": ("hcb", {"pivot": int(order[9])}),
        }
        assert set(record["variants"]) == set(options)
        i, j = tables.gold_cell
        base = mlmjoint.joint(tables, "hcb").log_table().double().exp()
        for name, (method, chosen) in options.items():
            mu = mlmjoint.joint(tables, method, **chosen).log_table().double()
            found = record["variants"][name]
            assert found["p_nll"] == pytest.approx(-0.5 * float(mu[i, j]), rel=1e-5)
            given_b = mu - mu.logsumexp(0, keepdim=True)
            given_a = mu - mu.logsumexp(1, keepdim=True)
            a, b = tables.log_a.double(), tables.log_b.double()
            kl = (a.exp() * (a - given_b)).sum() + (b.exp() * (b - given_a)).sum()
            assert found["a_kl"] == pytest.approx(float(kl) / sum(mu.shape), rel=1e-4)
            if method == "hcb":
                p, m = mu.exp(), 0.5 * (mu.exp() + base)
                jsd = 0.5 * ((p * (p / m).log()).sum() + (base * (base / m).log()).sum())
                assert found["jsd"] == pytest.approx(float(jsd), rel=1e-4)
        objective = record["variants"]["ag-40"]["objective"]
        assert objective >= record["methods"]["ag"]["objective"]

    def test_variants_follow_the_methods_and_can_be_left_out(self, mlm, text, tmp_path):
        few = study(mlm, f"text:{text}", tmp_path / "a", n=1, methods=["mlm", "ag"])
        assert set(few.records[0]["variants"]) == {"ag-40"}
        none = study(mlm, f"text:{text}", tmp_path / "b", n=1, methods=["mlm"], extras=False)
        assert "variants" not in none.records[0]
        assert none.records[0]["jsd"] == {}

    def test_small_vocabularies_have_no_tenth_token(self):
        p = torch.full((4, 4), 0.25).log()
        found = variants(
            mlmjoint.tables_from_arrays(p, p, log_p_a=p[0], log_p_b=p[0], gold=(0, 1)), ["hcb"]
        )
        assert set(found) == {"hcb-ba", "hcb-2"}

    def test_infinity_is_strict_json_and_comes_back(self):
        line = records.dumps({"x": math.inf, "y": math.nan, "z": [0.123456789]})
        assert line == '{"x":"inf","y":null,"z":[0.1234568]}'
        assert records._restore(json.loads(line))["x"] == math.inf


class TestAsPublished:
    def test_quirks_come_back_together(self, mlm, text, tmp_path):
        done = study(mlm, f"text:{text}", tmp_path / "random", as_published=True)
        assert done.manifest["vocabulary"] == mlm.vocab_size  # [PAD] and [MASK] are contexts
        orders = {record["positions"][0] < record["positions"][1] for record in done.records}
        assert orders == {True, False}
        for index, record in enumerate(done.records):
            ids = mlm.encode(SENTENCES[index])
            special = [token in mlm.special_ids for token in ids]
            drawn = draw_pair(ids, special, "random", 0, f"row {index}", as_published=True)
            assert tuple(record["positions"]) == drawn
            assert record["gold"] == [ids[p] for p in drawn]

    def test_a_reversed_pair_turns_the_one_sided_joints_round(self, mlm, text, tmp_path):
        done = study(mlm, f"text:{text}", tmp_path / "random", as_published=True)
        index, record = next(
            (k, r) for k, r in enumerate(done.records) if r["positions"][0] > r["positions"][1]
        )
        tables = mlmjoint.conditionals(mlm, mlm.pair(SENTENCES[index], record["positions"]))
        i, j = tables.gold
        for name, method, options in (
            ("hcb", "hcb", {"direction": "ba"}),
            ("chain-ab", "chain-ba", {}),
            ("ag", "ag", {}),
        ):
            expected = -0.5 * mlmjoint.joint(tables, method, **options).log_prob(i, j)
            assert record["methods"][name]["p_nll"] == pytest.approx(expected, rel=1e-4)

    def test_a_contiguous_pair_of_one_token_takes_in_sep(self, mlm, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("man\n")
        done = study(
            mlm, f"text:{path}", tmp_path / "out", "contiguous", methods=["mlm"], as_published=True
        )
        assert done.records[0]["positions"] == [1, 2]
        assert done.records[0]["gold"][1] == mlm.tokenizer.sep_token_id
        with pytest.raises(InputError):
            study(mlm, f"text:{path}", tmp_path / "fixed", "contiguous", methods=["mlm"])


class TestToy:
    def test_truth_and_tree_distance(self, tmp_path):
        from mlmjoint.text.toy_grammar import tree_distance
        from mlmjoint.text.toy_world import ToyWorld

        world = ToyWorld()
        toy = toy_model(tmp_path / "toy")
        done = study(toy, "toy", tmp_path / "out", n=3, seed=4)
        for sentence, record in zip(world.sample(3, 4), done.records, strict=True):
            a, b = record["positions"]
            assert record["tree_distance"] == tree_distance(sentence, a, b)
            pair, kept = toy.pair(sentence.text, (a, b)), text_vocabulary(toy)
            tables = mlmjoint.conditionals(toy, pair, tokens=(kept, kept))
            truth = world.true_joint(sentence.text, a, b)[kept][:, kept]
            p = truth.exp()
            assert float(p.sum()) == pytest.approx(1)  # no mass on special tokens
            for method in ("mlm", "ag", "hcb"):
                mu = mlmjoint.joint(tables, method).log_table().double()
                kl = float(torch.where(p > 0, p * (truth - mu), 0.0).sum())
                assert record["methods"][method]["kl_true"] == pytest.approx(kl, rel=1e-4)
            assert record["variants"]["ag-40"]["kl_true"] > 0
            assert record["unary"]["kl_true"] > 0

    def test_another_model_s_tokens_have_no_truth(self, mlm, tmp_path):
        done = study(mlm, "toy", tmp_path, n=1, methods=["mlm"])
        assert "tree_distance" not in done.records[0]
        assert "kl_true" not in done.records[0]["methods"]["mlm"]


def toy_model(folder):
    """A toy model with random weights."""
    from dataclasses import replace

    from mlmjoint.text.toy_world import ToyWorld
    from mlmjoint.train.recipes import RECIPES, initialise

    recipe = replace(RECIPES["toy"], layers=(0,), hidden_size=16)
    model, tokenizer = initialise(recipe, ToyWorld().sample_text(50, 0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return mlmjoint.load(folder)


def test_a_call_is_quiet_and_a_log_says_how_far_it_is(mlm, text, tmp_path, capsys, monkeypatch):
    study(mlm, f"text:{text}", tmp_path, methods=["mlm"], n=2)
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""
    clock = iter(range(0, 10_000, 25))
    monkeypatch.setattr("mlmjoint.studies.progress.time.monotonic", lambda: next(clock))
    study(mlm, f"text:{text}", tmp_path, methods=["mlm"], n=12, progress="log")
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 5 and "/12 pairs" in lines[0] and "P-PPL" in lines[-1]


ROOT = Path(__file__).resolve().parents[2]


def test_make_paper_runs_the_paper_s_studies_with_any_options(monkeypatch):
    """As the Makefile's comment says: STUDY="--as-published" or STUDY="--engine ray"."""
    monkeypatch.delenv("MLMJOINT_RESULTS", raising=False)
    (recipe,) = re.findall(
        r"^paper:.*\n\t\$\(BIN\)/mlmjoint (.+)$", (ROOT / "Makefile").read_text(), re.M
    )
    for options, changed in {
        "": {},
        "--as-published": {"as_published": True},
        "--engine ray": {},
        "--methods mlm ag --no-extras --dtype bfloat16": {
            "methods": ("mlm", "ag"),
            "extras": False,
            "dtype": "bfloat16",
        },
    }.items():
        args = build_parser("study").parse_args(recipe.replace("$(STUDY)", options).split())
        expected = [
            Plan(model, data, pairs, 1000, seed=0, **changed)
            for model in ("bert-base-cased", "bert-large-cased")
            for data in ("snli", "xsum")
            for pairs in ("random", "contiguous")
        ]
        folders = {ROOT / f"results/paper/{p.model}-{p.data}-{p.pairs}": p for p in expected}
        assert plans(args) == folders and list(plans(args)) == list(folders)


def test_a_profile_runs_every_cell_of_it(tiny_model, text, tmp_path, capsys, monkeypatch):
    from mlmjoint.studies import plan as results

    cells = [results.Plan(str(tiny_model), f"text:{text}", pairs, 2) for pairs in results.SCHEMES]
    monkeypatch.setitem(results.GROUPS, "scratch", {"tiny": cells})
    monkeypatch.setattr("mlmjoint.cli.study.RUNNABLE", ("scratch",))
    monkeypatch.setattr(results.Plan, "name", property(lambda plan: f"tiny-{plan.pairs}"))
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    assert main(["study", "--profile", "scratch", "--methods", "mlm", "ag"]) == 0
    assert results.stored("scratch") == ["tiny-contiguous", "tiny-random"]
    assert all(r["distance"] == 1 for r in results.read("scratch", "tiny-contiguous").records)
    lines = capsys.readouterr().out.splitlines()
    for line, cell in zip(lines, cells, strict=True):
        done = results.read("scratch", f"tiny-{cell.pairs}").records
        u, p = (
            math.exp(sum(r["methods"]["ag"][key] for r in done) / 2) for key in ("u_nll", "p_nll")
        )
        assert line.endswith(f": 2 pairs, ag U-PPL {u:.4g} P-PPL {p:.4g}")
