"""Corpora: stable ids and choices, the published protocol, one line for each bad input."""

import json
import math

import numpy as np
import pytest

from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.text import corpora, corpus
from mlmjoint.text.corpora import columns as read_columns
from mlmjoint.text.corpora import parse

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def no_folders_from_outside(monkeypatch, tmp_path):
    for name in ("MLMJOINT_SNLI", "MLMJOINT_XSUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf-cache"))


def texts(sentences):
    return [sentence.text for sentence in sentences]


# Shipped


@pytest.mark.parametrize(
    ("spec", "least", "kind"),
    [
        ("captions", 240, "everyday"),
        ("reactions", 36, "chemical"),
        ("antibodies", 36, "therapeutic"),
        ("antibodies-light", 36, "therapeutic"),
    ],
)
def test_shipped(spec, least, kind):
    sentences = corpus(spec)
    assert len({sentence.id for sentence in sentences}) == len(sentences) >= least
    assert (sentences.source, sentences.counts) == ("shipped", {"empty": 0, "repeated": 0})
    readme = (files.CORPORA / "README.md").read_text()
    assert f"| {len(sentences)} {kind}" in readme
    for file in files.CORPORA.iterdir():
        assert file.name == "README.md" or f"| {file.name} |" in readme


def test_sequences_are_clean():
    for spec in ("antibodies", "antibodies-light"):
        assert all(set(text) <= set("ACDEFGHIKLMNPQRSTVWY") for text in texts(corpus(spec)))
    for text in texts(corpus("reactions")):
        assert text.count(">>") == 1 and ":" not in text, "one arrow, no atom maps"


def test_a_larger_n_only_adds():
    few, more = corpus("captions", n=5), corpus("captions", n=50)
    assert texts(more)[:5] == texts(few)
    assert texts(corpus("captions", n=5, seed=1)) != texts(few)
    assert set(texts(corpus("captions", n=10**6))) == set(texts(corpus("captions")))


def test_toy_is_sampled():
    one = corpus("toy", n=30, seed=7)
    assert len(one) == 30
    assert texts(one)[:10] == texts(corpus("toy", n=10, seed=7))
    assert texts(one) != texts(corpus("toy", n=30, seed=8))
    assert one.truth.distance(one[0].id, 1, 1) == 0
    assert len(corpus("toy")) == corpora.TOY_SENTENCES


# A user's own files


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a:b"


def test_text_file(path):
    path.write_text("One  two three.\n\nFour five.\nOne two three.\nSix é.\n", encoding="utf-8")
    sentences = corpus(f"text:{path}")
    assert texts(sentences) == ["One two three.", "Four five.", "Six é."]
    assert [sentence.row for sentence in sentences] == ["line 1", "line 3", "line 5"]
    assert sentences.counts == {"empty": 1, "repeated": 1}


def test_ids_and_choice_do_not_depend_on_order(tmp_path):
    lines = [f"sentence number {k} ." for k in range(40)]
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("\n".join(lines))
    other.write_text("\n".join(reversed(lines)))
    first, second = corpus(f"text:{one}", n=7), corpus(f"text:{other}", n=7)
    assert [s.id for s in first] == [s.id for s in second]
    assert first.fingerprint == second.fingerprint
    assert corpus(f"text:{one}").fingerprint != corpus(f"text:{other}").fingerprint


def test_jsonl_file(path):
    path.write_text('{"s": "One two.", "x": 1}\n\n{"s": "Three four."}\n')
    assert texts(corpus(f"jsonl:{path}:s")) == ["One two.", "Three four."]
    path.write_text('{"s": "One two.", "x": "Five."}\n{"s": "One two.", "x": "Six."}\n')
    assert texts(corpus(f"jsonl:{path}:s,x")) == ["One two.", "Five.", "Six."]
    path.write_text('{"s": "One two.", "t": null}\n{"s": null, "t": ""}\n')
    sentences = corpus(f"jsonl:{path}:s,t")
    assert texts(sentences) == ["One two."] and sentences.counts == {"empty": 3, "repeated": 0}


@pytest.mark.parametrize("space", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(path, space):
    """What str.splitlines() also takes for one is a space within a sentence."""
    line = f"the man sees{space}the dog ."
    path.write_bytes(f"{line}\r\n{line}\n\nlast .".encode())
    sentences = corpus(f"text:{path}")
    assert texts(sentences) == ["the man sees the dog .", "last ."]
    assert sentences.counts == {"empty": 1, "repeated": 1}
    path.write_text(json.dumps({"s": line}, ensure_ascii=space in "\x0b\x0c\x1c") + "\r\n")
    assert texts(corpus(f"jsonl:{path}:s")) == ["the man sees the dog ."]


def test_a_byte_order_mark_is_not_text(path):
    path.write_bytes(b"\xef\xbb\xbfOne two.\n")
    assert texts(corpus(f"text:{path}")) == ["One two."]
    path.write_bytes(b'\xef\xbb\xbf{"s": "One two."}\n')
    assert texts(corpus(f"jsonl:{path}:s")) == ["One two."]


def refuse(spec, message, **options):
    with pytest.raises(InputError, match=message):
        corpus(spec, **options)


@pytest.mark.parametrize(
    ("spec", "content", "message"),
    [
        ("text:{}", b"", "has no sentences"),
        ("text:{}", b"\n \n", "has no sentences"),
        ("jsonl:{}:s", b'{"s": null}', "has no sentences"),
        ("text:{}", b"\xff\xfe\x00", "cannot read .*utf-8.*; give an existing file of UTF-8 text"),
        ("jsonl:{}:s", b'{"s": "a"}\n{', r"line 2 of .* is not JSON \(.*\); fix it"),
        ("jsonl:{}:s", b'{"s": "a", "n": ' + b"9" * 5000 + b"}", r"line 1 .* is not JSON \(.*dig"),
        ("jsonl:{}:s", b"[" * 100_000, r"line 1 of .* is not JSON \(.*recursion.*\); fix it"),
        ("jsonl:{}:s", b'{"t": "a", "u": 1}', r"line 1 .* no text in field 's' \(it has t, u\)"),
        ("jsonl:{}:s", b'{"s": 3}', "line 1 of .* has no text in field 's'"),
        ("jsonl:{}:s,t", b'{"s": "a"}', r"line 1 of .* has no text in field 't' \(it has s\)"),
        ("jsonl:{}:s", b"[1]", r"line 1 of .* has no text in field 's' \(it has no fields\)"),
        (
            "jsonl:{}:s",
            b'{"s": "a"}\n{"s": "b \\ud83d c"}',
            r"field 's' of line 2 of .* has an unpaired surrogate \('.ud83d'\); it is not valid",
        ),
    ],
)
def test_bad_files(path, spec, content, message):
    path.write_bytes(content)
    refuse(spec.format(path), message)


def test_bad_specifications(tmp_path):
    refuse("captoins", "unknown corpus 'captoins'; did you mean captions.* one of captions, react")
    refuse("wikipedia", "unknown corpus 'wikipedia'; choose one of captions")
    refuse("text:", "data 'text:' names no file or field; write text:FILE")
    refuse("jsonl:file", "data 'jsonl:file' names no file or field.*jsonl:FILE:FIELD")
    refuse(f"text:{tmp_path}/none.txt", "cannot read .*none.txt .*; give an existing file")
    refuse(f"text:{tmp_path}", "cannot read .*; give an existing file")
    for spec in ("text:~nosuchuser/x.txt", "jsonl:~nosuchuser/x:s"):
        refuse(spec, "cannot look up '~nosuchuser/x.* choose a different path")
    assert len(corpus("captions", n=np.int64(2))) == 2
    for n in (0, -1, 2.5, True):
        refuse("captions", f"n is {n}; give a whole number, 1 or more", n=n)


# SNLI and XSUM


ROWS = 1000


def save(folder, **splits):
    """Columns of each split, as ``save_to_disk`` writes them."""
    tables = {name: datasets.Dataset.from_dict(columns) for name, columns in splits.items()}
    datasets.DatasetDict(tables).save_to_disk(folder)
    return folder


def snli_columns(rows):
    return {name: [f"{name} {k} here ." for k in range(rows)] for name in ("premise", "hypothesis")}


@pytest.fixture(params=["disk", "parquet", "jsonl"])
def snli_folder(request, tmp_path):
    folder = tmp_path / "snli"
    splits = {"train": snli_columns(ROWS), "validation": snli_columns(12)}
    if request.param == "disk":
        return save(folder, **splits)
    for split, columns in splits.items():
        table = datasets.Dataset.from_dict(columns)
        if request.param == "parquet":
            table.to_parquet(folder / "plain_text" / f"{split}-00000-of-00001.parquet")
        else:
            table.to_json(folder / f"{split}.jsonl")
    return folder


def test_snli_follows_the_protocol(snli_folder):
    # The protocol again, from its description and nothing of ours.
    last = np.random.default_rng(0).permutation(ROWS)[-math.ceil(ROWS / 100) :]
    half = last[: len(last) // 2]
    expected = [f"{kind} {k} here ." for kind in ("premise", "hypothesis") for k in half]
    sentences = corpus(f"snli:{snli_folder}")
    assert texts(sentences) == expected
    assert sentences[0].row.startswith("train ") and sentences[0].row.endswith(" premise")
    assert texts(corpus(f"snli:{snli_folder}", n=3, seed=5)) == expected[:3]
    # The official split is read as it is.
    sentences, columns = corpus(f"snli-dev:{snli_folder}"), snli_columns(12)
    assert texts(sentences) == columns["premise"] + columns["hypothesis"]
    assert sentences.source == f"{snli_folder} validation"


def test_snli_reads_a_thousand_in_batches_of_a_hundred_rows(tmp_path):
    rows = 110_000  # the half of the last 1 % holds 550 of them
    sentences = texts(corpus(f"snli:{save(tmp_path / 'big', train=snli_columns(rows))}"))
    assert len(sentences) == 1000
    kinds = [text.split()[0] for text in sentences]
    assert kinds == (["premise"] * 100 + ["hypothesis"] * 100) * 5
    numbers = [int(text.split()[1]) for text in sentences]
    assert numbers[:100] == numbers[100:200]
    shuffled = np.random.default_rng(0).permutation(rows)[rows - 1100 :][:550]
    assert numbers[200:300] == shuffled[100:200].tolist()


def test_repeated_sentences_stay_apart_in_the_protocol(tmp_path):
    columns = {"premise": ["same ."] * 400, "hypothesis": [f"other {k} ." for k in range(400)]}
    folder = save(tmp_path / "s", train=columns, validation=columns)
    ids = [s.id for s in corpus(f"snli:{folder}") if s.text == "same ."]
    assert len(ids) == len(set(ids)) == 2 and ids[1] == f"{ids[0]}#2"
    dev = corpus(f"snli-dev:{folder}")
    assert texts(dev).count("same .") == 1
    assert dev.counts["repeated"] == 399


@pytest.fixture
def xsum_folder(tmp_path):
    columns = {"document": ["A long story."] * 50, "summary": [f"Summary {k} ." for k in range(50)]}
    return save(tmp_path / "xsum", validation=columns)


def test_xsum_follows_the_protocol(xsum_folder, monkeypatch):
    expected = [f"Summary {k} ." for k in np.random.default_rng(0).permutation(50)]
    assert texts(corpus(f"xsum:{xsum_folder}")) == expected
    monkeypatch.setenv("MLMJOINT_XSUM", str(xsum_folder))
    assert texts(corpus("xsum", n=4)) == expected[:4]
    plain = corpus("xsum-validation")
    assert texts(plain) == [f"Summary {k} ." for k in range(50)]
    assert set(texts(corpus("xsum-validation", n=9, seed=2))) < set(texts(plain))


def test_folders_that_do_not_fit(tmp_path):
    refuse(f"snli:{tmp_path}/nowhere", "no folder .*nowhere' for snli; give a datasets folder")
    (tmp_path / "empty").mkdir()
    refuse(f"xsum:{tmp_path}/empty", "has no readable split 'validation' .*folder written by save_")
    folder = save(tmp_path / "train-only", train={"summary": ["One two ."]})
    refuse(f"xsum:{folder}", "has no readable split 'validation'")
    refuse(f"snli:{folder}", r"no text in a column 'premise' \(it has summary: string\)")
    folder = save(tmp_path / "numbers", validation={"summary": [1, 2]})
    refuse(f"xsum-validation:{folder}", r"no text in a column 'summary' \(it has summary: int64\)")


@pytest.mark.parametrize("spec", ["snli", "xsum", "snli-dev", "xsum-validation"])
def test_hub_out_of_reach(spec):
    name = spec.split("-")[0]
    refuse(spec, f"cannot get .* from the hub.*as {name}:FOLDER or in MLMJOINT_{name.upper()}")


def test_columns_of_a_table(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('doc\tsentence\tnote\na1\t"One" is\tx\na1\tTwo .\ty\nb1\tOne\tz\n')
    spec = parse(f"tsv:{path}:sentence,doc")
    assert spec.fields == ("sentence", "doc") and str(spec.without_folder()).startswith("tsv:pairs")
    found = [(2, ['"One" is', "a1"]), (3, ["Two .", "a1"]), (4, ["One", "b1"])]
    assert [*read_columns(spec)] == found
    assert [s.text for s in corpus(f"tsv:{path}:sentence")] == ['"One" is', "Two .", "One"]
    assert corpus(f"tsv:{path}:sentence")[0].row == "line 2"
    refuse(
        f"tsv:{path}:text", r"line 2 of .* no text in field 'text' \(it has doc, sentence, note\)"
    )
    refuse(f"tsv:{path}", "names no file or field")
    path.write_text("doc\tsentence\na1 One\n")
    refuse(f"tsv:{path}:doc", "line 2 of .* has 1 columns and its first line 2")
