"""Studies: records with everything they promise, drawn and measured as described."""

import math
import re
import shlex
from pathlib import Path

import pytest
import torch
from conftest import SPECIALS, WORDS, save_tiny_model
from small_study import SENTENCES, snapshot

import mlmjoint
from mlmjoint.cli.main import build_parser, main
from mlmjoint.cli.study import plans
from mlmjoint.core import reference
from mlmjoint.errors import InputError
from mlmjoint.studies import plan as results
from mlmjoint.studies import records
from mlmjoint.studies.measure import variants
from mlmjoint.studies.plan import Plan
from mlmjoint.studies.study import study
from mlmjoint.text import ToyWorld, corpora, draw_pair, text_vocabulary, tree_distance

ROOT = Path(__file__).resolve().parents[2]


def tables_of(mlm, text, positions):
    """The tables that a study measures: over the tokens that text can contain."""
    kept = text_vocabulary(mlm)
    return mlmjoint.conditionals(mlm, mlm.pair(text, positions), tokens=(kept, kept))


def drawn(mlm, text, scheme, key, **options):
    ids = mlm.encode(text)
    special = [token in mlm.special_ids for token in ids]
    return draw_pair(ids, special, scheme, 0, key, **options)


class TestRecords:
    def test_one_line_per_sentence_with_all_that_was_promised(self, mlm, text, whole):
        text_of = {s.id: s.text for s in corpora.corpus(f"text:{text}")}
        assert [text_of[record["sentence"]] for record in whole.records] == SENTENCES
        for record in whole.records:
            assert record["distance"] == record["positions"][1] - record["positions"][0] > 0
            pair = drawn(mlm, text_of[record["sentence"]], "random", record["sentence"])
            assert tuple(record["positions"]) == pair
            assert list(record["methods"]) == list(mlmjoint.METHODS)
            for row in record["methods"].values():
                assert {"u_nll", "p_nll", "a_kl", "g_kl"} <= set(row)
            assert {"residual", "passes", "objective"} <= set(record["methods"]["ag"])
            assert record["methods"]["ag"]["residual"] <= 1e-5
            assert len(record["jsd"]) == 78 and record["incompatibility"] > 0

    def test_numbers_are_those_of_the_package(self, mlm, whole):
        record = whole.records[5]
        ids = mlm.encode(SENTENCES[5])
        assert record["gold"] == [ids[p] for p in record["positions"]]
        tables = tables_of(mlm, SENTENCES[5], record["positions"])
        assert tables.tokens[0].tolist() == [1, *range(5, mlm.vocab_size)]  # with [UNK], no [PAD]
        expected = mlmjoint.metrics(tables, mlmjoint.METHODS)
        for method in mlmjoint.METHODS:
            for key in ("u_nll", "p_nll", "a_kl", "g_kl"):
                value = record["methods"][method][key]
                assert value == pytest.approx(expected[method][key], rel=1e-5, abs=1e-9)
        assert record["jsd"]["mrf ag"] == pytest.approx(expected["jsd"]["mrf", "ag"], rel=1e-5)
        ag = mlmjoint.joint(tables, "ag")
        assert record["methods"]["ag"]["objective"] == pytest.approx(ag.objective, rel=1e-4)

    def test_manifest_says_what_was_done_and_no_file_has_a_sentence_or_a_path(
        self, mlm, whole, text
    ):
        manifest = whole.manifest
        assert manifest["model"]["fingerprint"] == mlm.fingerprint
        assert manifest["data"]["name"] == "text:sentences.txt"
        assert manifest["data"]["sentences"] == manifest["n"] == len(SENTENCES)
        assert manifest["vocabulary"] == mlm.vocab_size - 4
        (environment,) = manifest["environments"]
        assert environment["versions"]["torch"] == torch.__version__
        assert manifest["command"].startswith("mlmjoint study --model tiny --data text:sentences")
        for name, data in snapshot(whole.folder).items():
            for word in (b"walking", b"street", str(text.parent).encode(), b"/tmp"):
                assert word not in data, name

    def test_manifest_calls_the_data_by_the_name_given(self, mlm, text, tmp_path):
        options = {"data_name": "poems", "source": "a book", "extras": False, "methods": ["mlm"]}
        manifest = study(mlm, f"text:{text}", tmp_path, n=1, **options).manifest
        assert (manifest["data"]["name"], manifest["data"]["source"]) == ("poems", "a book")
        assert "--data text:sentences.txt --pairs random --data-name poems" in manifest["command"]
        again = {**options, "source": None}  # as somebody resumes it with the command alone
        manifest = study(mlm, f"text:{text}", tmp_path, n=2, **again).manifest
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
        tables = tables_of(mlm, SENTENCES[2], record["positions"])
        order = tables.log_p_a.argsort(descending=True)
        base = mlmjoint.joint(tables, "hcb").log_table().double()
        options = {
            "ag-40": ("ag", {"solver": "published", "iterations": 40}),
            "hcb-ba": ("hcb", {"direction": "ba"}),
            "hcb-2": ("hcb", {"pivot": int(order[1])}),
            "hcb-10": ("hcb", {"pivot": int(order[9])}),
        }
        assert set(record["variants"]) == set(options)
        for name, (method, chosen) in options.items():
            mu = mlmjoint.joint(tables, method, **chosen).log_table().double()
            row = record["variants"][name]
            assert row["p_nll"] == pytest.approx(-0.5 * float(mu[tables.gold_cell]), rel=1e-5)
            kl = reference.kl(tables.log_a.double(), mu - mu.logsumexp(0, keepdim=True))
            kl += reference.kl(tables.log_b.double(), mu - mu.logsumexp(1, keepdim=True))
            assert row["a_kl"] == pytest.approx(float(kl) / sum(mu.shape), rel=1e-4)
            if method == "hcb":
                middle = torch.logaddexp(mu, base) - math.log(2)
                jsd = 0.5 * (reference.kl(mu, middle) + reference.kl(base, middle))
                assert row["jsd"] == pytest.approx(float(jsd), rel=1e-4)
        objective = record["variants"]["ag-40"]["objective"]
        assert objective >= record["methods"]["ag"]["objective"]

    def test_variants_follow_the_methods_and_can_be_left_out(self, mlm, text, tmp_path, capsys):
        few = study(mlm, f"text:{text}", tmp_path / "a", n=1, methods=["mlm", "ag"])
        assert set(few.records[0]["variants"]) == {"ag-40"}
        none = study(mlm, f"text:{text}", tmp_path / "b", n=1, methods="mlm", extras=False)
        assert "variants" not in none.records[0] and none.records[0]["jsd"] == {}
        shown = capsys.readouterr()
        assert shown.out == shown.err == ""  # a call is quiet
        p = torch.full((4, 4), 0.25).log()
        tables = mlmjoint.tables_from_arrays(p, p, log_p_a=p[0], log_p_b=p[0], gold=(0, 1))
        assert set(variants(tables, ["hcb"])) == {"hcb-ba", "hcb-2"}  # there is no tenth token

    def test_infinity_is_strict_json(self):
        line = records.dumps({"x": math.inf, "y": math.nan, "z": [0.123456789]})
        assert line == '{"x":"inf","y":null,"z":[0.1234568]}'


class TestSentences:
    def test_too_short_ones_are_skipped_and_counted(self, mlm, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("man\na man\n\na man is walking [MASK] .\n" + "the " * 40 + "\n")
        done = study(mlm, f"text:{path}", tmp_path / "out", methods=["mlm"])
        assert len(done.records) == 2
        counts = {key: done.manifest["data"][key] for key in ("skipped", "truncated", "empty")}
        assert counts == {"skipped": 2, "truncated": 1, "empty": 1}
        path.write_text("man\ndog\n")
        with pytest.raises(InputError, match="longer"):
            study(mlm, f"text:{path}", tmp_path / "none")

    def test_reserved_tokens_have_no_place_in_the_tables(self, tmp_path):
        """They are never drawn: what would be written of them could not be read again."""
        reserved = [f"[unused{k}]" for k in range(5)]
        words = [*SPECIALS, *WORDS[:-5], *reserved]
        mlm = mlmjoint.load(save_tiny_model(tmp_path / "model", vocabulary=words))
        path, names = tmp_path / "text.txt", iter("abcdef")

        def run(lines, **options):
            path.write_text("\n".join(lines) + "\n")
            done = study(mlm, f"text:{path}", tmp_path / next(names), methods=["mlm"], **options)
            data = done.manifest["data"]
            return [r["positions"] for r in done.records], data["skipped"], data["truncated"]

        assert run([" ".join([*reserved, "a", *reserved, "man"])]) == ([[6, 12]], 0, 0)
        lines = ["a man is running", " ".join(reserved)]
        assert run(lines)[1:] == (1, 0)
        assert run(lines, as_published=True)[1:] == (0, 0)
        # No two neighbours are text here, cut or not: such a sentence is not counted twice.
        lines = ["man [unused0] " * 40, "a man is running"]
        assert run(lines, pairs="contiguous")[1:] == (1, 0)
        assert run(lines)[1:] == (0, 1)


class TestAsPublished:
    def test_quirks_come_back_together(self, mlm, text, tmp_path):
        done = study(mlm, f"text:{text}", tmp_path, as_published=True)
        assert done.manifest["vocabulary"] == mlm.vocab_size  # [PAD] and [MASK] are contexts
        for index, record in enumerate(done.records):
            pair = drawn(mlm, SENTENCES[index], "random", f"row {index}", as_published=True)
            assert tuple(record["positions"]) == pair
            assert record["gold"] == [mlm.encode(SENTENCES[index])[p] for p in pair]
        turned = [record["positions"][0] > record["positions"][1] for record in done.records]
        index = turned.index(True)
        assert not all(turned)
        # A reversed pair turns the one-sided joints round.
        record = done.records[index]
        tables = mlmjoint.conditionals(mlm, mlm.pair(SENTENCES[index], record["positions"]))
        for name, method, options in (
            ("hcb", "hcb", {"direction": "ba"}),
            ("chain-ab", "chain-ba", {}),
            ("ag", "ag", {}),
        ):
            expected = -0.5 * mlmjoint.joint(tables, method, **options).log_prob(*tables.gold)
            assert record["methods"][name]["p_nll"] == pytest.approx(expected, rel=1e-4)

    def test_a_contiguous_pair_of_one_token_takes_in_sep(self, mlm, tmp_path):
        path = tmp_path / "short.txt"
        path.write_text("man\n")
        options = {"pairs": "contiguous", "methods": ["mlm"]}
        done = study(mlm, f"text:{path}", tmp_path / "out", as_published=True, **options)
        assert done.records[0]["positions"] == [1, 2]
        assert done.records[0]["gold"][1] == mlm.tokenizer.sep_token_id
        with pytest.raises(InputError):
            study(mlm, f"text:{path}", tmp_path / "fixed", **options)


def test_toy_studies_measure_the_truth_where_the_tokens_fit(mlm, tmp_path):
    world, toy = ToyWorld(), mlmjoint.load("toy")
    done = study(toy, "toy", tmp_path / "out", n=2, seed=4)
    for sentence, record in zip(world.sample(2, 4), done.records, strict=True):
        a, b = record["positions"]
        assert record["tree_distance"] == tree_distance(sentence, a, b)
        kept = text_vocabulary(toy)
        tables = tables_of(toy, sentence.text, (a, b))
        truth = world.true_joint(sentence.text, a, b)[kept][:, kept]
        assert float(truth.exp().sum()) == pytest.approx(1)  # no mass on special tokens
        for method in ("mlm", "ag", "hcb"):
            kl = reference.kl(truth, mlmjoint.joint(tables, method).log_table().double())
            assert record["methods"][method]["kl_true"] == pytest.approx(float(kl), rel=1e-4)
        assert record["variants"]["ag-40"]["kl_true"] > 0 and record["unary"]["kl_true"] > 0
    other = study(mlm, "toy", tmp_path / "other", n=1, methods=["mlm"]).records[0]
    assert "tree_distance" not in other and "kl_true" not in other["methods"]["mlm"]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ("", {}),
        ("--as-published", {"as_published": True}),
        ("--engine ray", {}),
        ("--methods mlm ag --no-extras", {"methods": ("mlm", "ag"), "extras": False}),
    ],
)
def test_make_paper_runs_the_paper_s_studies_with_any_options(options, changed, monkeypatch):
    """As the Makefile's comment says: STUDY="--as-published" or STUDY="--engine ray"."""
    monkeypatch.delenv("MLMJOINT_RESULTS", raising=False)
    recipe = r"^paper:.*\n\t\$\(BIN\)/mlmjoint (.+)$"
    (recipe,) = re.findall(recipe, (ROOT / "Makefile").read_text(), re.M)
    args = build_parser("study").parse_args(recipe.replace("$(STUDY)", options).split())
    expected = [
        Plan(model, data, pairs, 1000, seed=0, **changed)
        for model in ("bert-base-cased", "bert-large-cased")
        for data in ("snli", "xsum")
        for pairs in ("random", "contiguous")
    ]
    folders = {ROOT / f"results/paper/{p.model}-{p.data}-{p.pairs}": p for p in expected}
    assert list(plans(args).items()) == list(folders.items())


def test_a_profile_runs_every_cell_of_it(tiny_model, text, tmp_path, capsys, monkeypatch):
    cells = [Plan(str(tiny_model), f"text:{text}", pairs, 2) for pairs in results.SCHEMES]
    monkeypatch.setitem(results.GROUPS, "scratch", {"tiny": cells})
    monkeypatch.setattr("mlmjoint.cli.study.RUNNABLE", ("scratch",))
    monkeypatch.setattr(Plan, "name", property(lambda plan: f"tiny-{plan.pairs}"))
    monkeypatch.setenv("MLMJOINT_RESULTS", str(tmp_path))
    assert main(["study", "--profile", "scratch", "--methods", "mlm", "ag"]) == 0
    done = results.stored_studies("scratch")
    assert list(done) == ["tiny-contiguous", "tiny-random"]
    assert all(record["distance"] == 1 for record in done["tiny-contiguous"].records)
    for line, cell in zip(capsys.readouterr().out.splitlines(), cells, strict=True):
        nll = (done[cell.name].values("ag", key) for key in ("u_nll", "p_nll"))
        u, p = (math.exp(sum(values) / 2) for values in nll)
        assert line.endswith(f": 2 pairs, ag U-PPL {u:.4g} P-PPL {p:.4g}")
