"""The paper's studies at smaller vocabularies, and every night one at its own, 28,996 tokens."""

import pytest
from conftest import SPECIALS, save_tiny_model

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.studies import records

PAPER, LARGE, SMALL = 28_996, 4_196, 1_196  # LARGE: float32 cells, and no system solved directly
RESERVED = 99


def published_data(folder):
    """Folders in SNLI's and XSUM's format: of 400 training rows four are held out, two are used."""
    datasets = pytest.importorskip("datasets")
    rows = [f"The dog is walking {k}" for k in range(400)]
    snli = {"premise": rows, "hypothesis": [f"The man is {k}" for k in range(400)]}
    xsum = {"document": rows[:3], "summary": [f"The street is {k}" for k in range(3)]}
    for name, split, columns in (("snli", "train", snli), ("xsum", "validation", xsum)):
        table = datasets.Dataset.from_dict(columns)
        datasets.DatasetDict({split: table}).save_to_disk(str(folder / name))
    return folder


def paper_shape(folder, vocabulary):
    """A tiny random BERT whose vocabulary is laid out as bert-base-cased's is."""
    words = ["[PAD]", *(f"[unused{k}]" for k in range(1, RESERVED + 1)), *SPECIALS[1:]]
    words += ["man", "dog", "street", "The", "is", "walking"]
    words += [f"word{k}" for k in range(vocabulary - len(words))]
    return save_tiny_model(folder / "bert-base-cased", words, vocab_size=vocabulary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "pairs", "n", "vocabulary", "whole"),
    [
        pytest.param("snli", "random", 1, PAPER, False, marks=pytest.mark.nightly),
        ("snli", "random", 1, LARGE, True),
        ("xsum", "contiguous", 2, SMALL, True),
    ],
)
def test_the_paper_s_studies(data, pairs, n, vocabulary, whole, tmp_path, monkeypatch):
    """The command of `make paper`; at the paper's vocabulary, 1.7 billion cells a pair, without the
    extras.

    The layers are narrow because their width, unlike the vocabulary, meets no other code.
    """
    model = paper_shape(tmp_path, vocabulary)
    folder = published_data(tmp_path / "data")
    monkeypatch.setenv(f"MLMJOINT_{data.upper()}", str(folder / data))
    out = tmp_path / data
    methods = mlmjoint.METHODS if whole else ("mlm", "mrf", "mrf-l", "hcb", "ag")
    command = ["study", "--model", str(model), "--data", data, "--pairs", pairs]
    command += ["--n", str(n), "--seed", "0", "--out", str(out)]
    assert main(command if whole else [*command, "--methods", *methods, "--no-extras"]) == 0
    done = records.load_study(out)
    assert done.manifest["vocabulary"] == vocabulary - RESERVED - 4
    assert str(tmp_path) not in (out / records.MANIFEST).read_text()
    assert len(done.records) == n
    for record in done.records:
        rows = record["methods"]
        assert tuple(rows) == tuple(methods) and ("variants" in record) == whole
        assert rows["ag"]["residual"] <= 1e-5
        assert all(rows["ag"]["a_kl"] < rows[other]["a_kl"] for other in set(methods) - {"ag"})
        assert rows["mlm"]["u_nll"] == pytest.approx(rows["mlm"]["p_nll"], rel=1e-4)
        assert record["distance"] == 1 or pairs == "random"
