"""The paper's studies at the paper's vocabulary: two tables of 28,893 x 28,893 a pair."""

import pytest
import torch

import mlmjoint
from mlmjoint.cli.main import main
from mlmjoint.studies import records


def bert_base_cased_shape(folder):
    """A random BERT with bert-base-cased's vocabulary layout and width of logits, and 2 layers."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    words = ["[PAD]", *(f"[unused{k}]" for k in range(1, 100)), "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(k) for k in range(33, 127)]
    words += letters + [f"##{letter}" for letter in letters]
    words += ["man", "dog", "street", "The", "is", "walking", "##s"]
    words = list(dict.fromkeys(words))
    words += [f"word{k}" for k in range(28_996 - len(words))]
    ids = {word: k for k, word in enumerate(words)}
    backend = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(s, ids[s]) for s in ("[CLS]", "[SEP]")]
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=512,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=28_996,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.3,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


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
    return bert_base_cased_shape(tmp_path_factory.mktemp("paper") / "bert-base-cased")


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
    assert done.manifest["vocabulary"] == 28_996 - 99 - 4
    assert str(tmp_path) not in (out / records.MANIFEST).read_text()
    assert len(done.records) == n
    for record in done.records:
        rows = record["methods"]
        assert tuple(rows) == tuple(methods) and ("variants" in record) == whole
        assert rows["ag"]["residual"] <= 1e-5
        assert all(rows["ag"]["a_kl"] < rows[other]["a_kl"] for other in set(methods) - {"ag"})
        assert rows["mlm"]["u_nll"] == pytest.approx(rows["mlm"]["p_nll"], rel=1e-4)
        assert record["distance"] == 1 or pairs == "random"
