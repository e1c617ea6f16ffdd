"""The paper's studies at the paper's vocabulary: two tables of 28,893 x 28,893 a pair."""

import pytest
from conftest import SPECIALS, save_tiny_model

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.studies import records

VOCABULARY = 28_996
RESERVED = 99


def published_data(folder):
    """Folders in SNLI's and XSUM's format: of 400 training rows four are held out, two are used."""
    datasets = pytest.importorskip("datasets")
    rows = [f"The dog is walking {k}" for k in range(400)]
    snli = {
        "premise": rows,
        "hypothesis": [f"The man is {k}" for k in range(400)],
        "label": [0] * 400,
    }
    xsum = {
        "document": rows[:3],
        "summary": [f"The street is {k}" for k in range(3)],
        "id": rows[:3],
    }
    snli, xsum = datasets.Dataset.from_dict(snli), datasets.Dataset.from_dict(xsum)
    datasets.DatasetDict({"train": snli}).save_to_disk(str(folder / "snli"))
    datasets.DatasetDict({"validation": xsum}).save_to_disk(str(folder / "xsum"))
    return folder


@pytest.fixture(scope="module")
def paper_shape(tmp_path_factory):
    """A tiny random BERT with bert-base-cased's vocabulary: its layout, and its width of logits."""
    words = ["[PAD]", *(f"[unused{k}]" for k in range(1, RESERVED + 1)), *SPECIALS[1:]]
    words += ["man", "dog", "street", "The", "is", "walking"]
    words += [f"word{k}" for k in range(VOCABULARY - len(words))]
    folder = tmp_path_factory.mktemp("paper") / "bert-base-cased"
    return save_tiny_model(folder, vocabulary=words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "pairs", "n", "whole"),
    [
        ("snli", "random", 1, False),
        ("xsum", "contiguous", 1, False),
        ("snli", "contiguous", 1, False),
        ("xsum", "random", 2, True),
    ],
)
def test_the_paper_s_cells_at_its_vocabulary(
    data, pairs, n, whole, paper_shape, tmp_path, monkeypatch
):
    """The command of `make paper` as it is for one cell, for the others without the extras: 1.7
    billion cells a pair.

    The layers are narrow because their width, unlike the vocabulary, meets no other code.
    """
    folder = published_data(tmp_path / "data")
    monkeypatch.setenv(f"MLMJOINT_{data.upper()}", str(folder / data))
    out = tmp_path / data
    methods = mlmjoint.METHODS if whole else ("mlm", "mrf", "mrf-l", "hcb", "ag")
    command = ["study", "--model", str(paper_shape), "--data", data, "--pairs", pairs]
    command += ["--n", str(n), "--seed", "0", "--out", str(out)]
    assert main(command if whole else [*command, "--methods", *methods, "--no-extras"]) == 0
    done = records.load_study(out)
    assert done.manifest["vocabulary"] == VOCABULARY - RESERVED - 4
    assert str(tmp_path) not in (out / records.MANIFEST).read_text()
    assert len(done.records) == n
    for record in done.records:
        rows = record["methods"]
        assert tuple(rows) == tuple(methods) and ("variants" in record) == whole
        assert rows["ag"]["residual"] <= 1e-5
        assert all(rows["ag"]["a_kl"] < rows[other]["a_kl"] for other in set(methods) - {"ag"})
        assert rows["mlm"]["u_nll"] == pytest.approx(rows["mlm"]["p_nll"], rel=1e-4)
        assert record["distance"] == 1 or pairs == "random"
