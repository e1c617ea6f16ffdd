"""Corpora: stable ids and choices, the published protocol, one line for each bad input."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from mlmjoint import files
from mlmjoint.errors import InputError
from mlmjoint.text import corpora, corpus, encode

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
    ("spec", "least"),
    [("captions", 240), ("reactions", 36), ("antibodies", 36), ("antibodies-light", 36)],
)
def test_shipped(spec, least):
    found = corpus(spec)
    assert len(found) >= least
    assert len({sentence.id for sentence in found}) == len(found)
    assert found.source == "shipped"
    assert found.counts == {"empty": 0, "repeated": 0}


def test_captions_are_varied_sentences():
    found = texts(corpus("captions"))
    lengths = [len(text.split()) for text in found]
    assert min(lengths) >= 6 and max(lengths) <= 20
    assert all(text[0].isupper() and text.endswith(".") and text.isascii() for text in found)
    # No opening word rules, and the vocabulary is broad.
    first = Counter(text.split()[0] for text in found)
    assert max(first.values()) < 0.5 * len(found)
    assert len({word.strip(".,").lower() for text in found for word in text.split()}) > 700


def test_sequences_are_clean():
    for spec in ("antibodies", "antibodies-light"):
        assert all(set(text) <= set("ACDEFGHIKLMNPQRSTVWY") for text in texts(corpus(spec)))
    for text in texts(corpus("reactions")):
        assert text.count(">>") == 1 and ":" not in text, "one arrow, no atom maps"


def test_shipped_sources_are_named():
    readme = (files.CORPORA / "README.md").read_text()
    for file in files.CORPORA.iterdir():
        assert file.name == "README.md" or f"| {file.name} |" in readme
    assert f"| {len(corpus('captions'))} everyday" in readme
    assert f"| {len(corpus('reactions'))} chemical" in readme
    assert f"| {len(corpus('antibodies'))} therapeutic" in readme


def test_a_larger_n_only_adds():
    few, more = corpus("captions", n=5), corpus("captions", n=50)
    assert texts(more)[:5] == texts(few)
    assert texts(corpus("captions", n=5, seed=1)) != texts(few)
    assert set(texts(corpus("captions", n=10**6))) == set(texts(corpus("captions")))


def test_toy_is_sampled():
    one = corpus("toy", n=30, seed=7)
    assert len(one) == 30
    assert texts(one) == texts(corpus("toy", n=30, seed=7))
    assert texts(one)[:10] == texts(corpus("toy", n=10, seed=7))
    assert texts(one) != texts(corpus("toy", n=30, seed=8))
    assert one.truth.distance(one[0].id, 1, 1) == 0
    assert len(corpus("toy")) == corpora.TOY_SENTENCES


# A user's own files


def test_text_file(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(
        "One  two three.\n\nFour five.\nOne two three.\nSix é seven.\n", encoding="utf-8"
    )
    found = corpus(f"text:{path}")
    assert texts(found) == ["One two three.", "Four five.", "Six é seven."]
    assert [sentence.row for sentence in found] == ["line 1", "line 3", "line 5"]
    assert found.counts == {"empty": 1, "repeated": 1}


def test_ids_and_choice_do_not_depend_on_order(tmp_path):
    lines = [f"sentence number {k} ." for k in range(40)]
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("\n".join(lines))
    other.write_text("\n".join(reversed(lines)))
    first, second = corpus(f"text:{one}", n=7), corpus(f"text:{other}", n=7)
    assert [s.id for s in first] == [s.id for s in second]
    assert first.fingerprint == second.fingerprint
    assert corpus(f"text:{one}").fingerprint != corpus(f"text:{other}").fingerprint


def test_jsonl_file(tmp_path):
    path = tmp_path / "a:b.jsonl"
    path.write_text('{"s": "One two.", "x": 1}\n\n{"s": "Three four."}\n')
    assert texts(corpus(f"jsonl:{path}:s")) == ["One two.", "Three four."]
    path.write_text('{"s": "One two.", "x": "Five."}\n{"s": "One two.", "x": "Six."}\n')
    assert texts(corpus(f"jsonl:{path}:s,x")) == ["One two.", "Five.", "Six."]


@pytest.mark.parametrize("space", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(tmp_path, space):
    """What str.splitlines() also takes for one is a space within a sentence."""
    line = f"the man sees{space}the dog ."
    path = tmp_path / "mine"
    path.write_bytes(f"{line}\r\n{line}\n\nlast .".encode())
    found = corpus(f"text:{path}")
    assert texts(found) == ["the man sees the dog .", "last ."]
    assert found.counts == {"empty": 1, "repeated": 1}
    path.write_text(json.dumps({"s": line}, ensure_ascii=space in "\x0b\x0c\x1c") + "\r\n")
    assert texts(corpus(f"jsonl:{path}:s")) == ["the man sees the dog ."]


def test_a_byte_order_mark_is_no_text(tmp_path):
    plain, marked = tmp_path / "plain.txt", tmp_path / "marked.txt"
    plain.write_bytes("One two é.\nThree four.\n".encode())
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    assert corpus(f"text:{marked}").fingerprint == corpus(f"text:{plain}").fingerprint
    marked.write_bytes(b'\xef\xbb\xbf{"s": "One two."}\n')
    assert texts(corpus(f"jsonl:{marked}:s")) == ["One two."]


def test_null_counts_as_empty(tmp_path):
    path = tmp_path / "null.jsonl"
    path.write_text('{"s": "One two.", "t": null}\n{"s": null, "t": ""}\n')
    found = corpus(f"jsonl:{path}:s,t")
    assert texts(found) == ["One two."] and found.counts == {"empty": 3, "repeated": 0}
    refuse(f"jsonl:{path}:t", "has no sentences")


def file(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("spec", "content", "message"),
    [
        ("text:{}", b"", "has no sentences"),
        ("text:{}", b"\n \n", "has no sentences"),
        ("text:{}", b"\xff\xfe\x00", "is not UTF-8 text; convert it first"),
        ("jsonl:{}:s", b'{"s": "a"}\n{', r"line 2 of .* is not JSON \(.*\); fix it"),
        ("jsonl:{}:s", b'{"s": "a", "n": ' + b"9" * 5000 + b"}", r"line 1 .* is not JSON \(.*dig"),
        ("jsonl:{}:s", b"[" * 100_000, r"line 1 of .* is not JSON \(.*recursion.*\); fix it"),
        ("jsonl:{}:s", b'{"t": "a", "u": 1}', r"line 1 .* no text in field 's' \(it has t, u\)"),
        ("jsonl:{}:s", b'{"s": 3}', "line 1 of .* has no text in field 's'"),
        ("jsonl:{}:s,t", b'{"s": "a"}', r"line 1 of .* has no text in field 't' \(it has s\)"),
        (
            "jsonl:{}:s",
            b'{"s": "a"}\n{"s": "b \\ud83d c"}',
            r"line 2 of .* unpaired surrogate \('.ud83d'\) in field 's'; it is not valid",
        ),
        ("jsonl:{}:s", b"[1]", r"line 1 of .* has no text in field 's' \(it has no fields\)"),
    ],
)
def test_bad_files(tmp_path, spec, content, message):
    refuse(spec.format(file(tmp_path, content)), message)


def refuse(spec, message, **options):
    with pytest.raises(InputError, match=message) as caught:
        corpus(spec, **options)
    assert "\n" not in str(caught.value)


def test_bad_specifications(tmp_path):
    refuse("captoins", "unknown corpus 'captoins'; did you mean captions.* one of captions, react")
    refuse("wikipedia", "unknown corpus 'wikipedia'; choose one of captions")
    refuse("text:", "data 'text:' names no file or field; write text:FILE")
    refuse("jsonl:file", "data 'jsonl:file' names no file or field.*jsonl:FILE:FIELD")
    refuse(f"text:{tmp_path}/none.txt", "cannot read .*none.txt .*; give an existing file")
    refuse(f"text:{tmp_path}", "cannot read .*; give an existing file")
    for spec in ("text:~nosuchuser/x.txt", "jsonl:~nosuchuser/x:s"):
        refuse(spec, "the home folder of ~nosuchuser is unknown; write the full path")
    assert len(corpus("captions", n=np.int64(2))) == 2
    for n in (0, -1, 2.5, True):
        refuse("captions", f"n is {n}; give a whole number, 1 or more", n=n)


# SNLI and XSUM


ROWS = 1000


def snli_columns(rows=ROWS):
    return {
        "premise": [f"premise {k} here ." for k in range(rows)],
        "hypothesis": [f"hypothesis {k} here ." for k in range(rows)],
        "label": [k % 4 - 1 for k in range(rows)],
    }


def snli_table(rows=ROWS):
    return datasets.Dataset.from_dict(snli_columns(rows))


@pytest.fixture(params=["disk", "parquet", "jsonl", "original"])
def snli_folder(request, tmp_path):
    folder = tmp_path / "snli"
    train, dev = snli_table(), snli_table(12)
    if request.param == "disk":
        datasets.DatasetDict(train=train, validation=dev).save_to_disk(folder)
        return folder
    folder.mkdir()
    if request.param == "parquet":
        (folder / "plain_text").mkdir()
        train.to_parquet(folder / "plain_text" / "train-00000-of-00001.parquet")
        dev.to_parquet(folder / "plain_text" / "validation-00000-of-00001.parquet")
    elif request.param == "jsonl":
        train.to_json(folder / "train.jsonl")
        dev.to_json(folder / "validation.jsonl")
    else:
        names = {"premise": "sentence1", "hypothesis": "sentence2"}
        train.rename_columns(names).to_json(folder / "snli_1.0_train.jsonl")
        dev.rename_columns(names).to_json(folder / "snli_1.0_dev.jsonl")
    return folder


def published_snli(rows):
    """The protocol again, from its description and nothing of ours."""
    shuffled = np.random.default_rng(0).permutation(rows)
    last = shuffled[rows - math.ceil(rows / 100) :]
    half = last[: len(last) // 2]
    return [f"premise {k} here ." for k in half] + [f"hypothesis {k} here ." for k in half]


def test_snli_follows_the_protocol(snli_folder):
    found = corpus(f"snli:{snli_folder}")
    assert texts(found) == published_snli(ROWS)
    assert found[0].row.startswith("train ") and found[0].row.endswith(" premise")
    assert texts(corpus(f"snli:{snli_folder}", n=3, seed=5)) == published_snli(ROWS)[:3]


def test_snli_dev_is_the_official_split(snli_folder):
    found = corpus(f"snli-dev:{snli_folder}")
    expected = snli_columns(12)
    assert texts(found) == expected["premise"] + expected["hypothesis"]
    assert found.source == f"{snli_folder} validation"


def test_snli_reads_a_thousand_in_batches_of_a_hundred_rows(tmp_path):
    rows = 110_000  # the half of the last 1 % holds 550 of them
    columns = {key: value for key, value in snli_columns(rows).items() if key != "label"}
    datasets.DatasetDict(train=datasets.Dataset.from_dict(columns)).save_to_disk(tmp_path / "big")
    found = texts(corpus(f"snli:{tmp_path / 'big'}"))
    assert len(found) == 1000
    kinds = [text.split()[0] for text in found]
    assert kinds == (["premise"] * 100 + ["hypothesis"] * 100) * 5
    numbers = [int(text.split()[1]) for text in found]
    assert numbers[:100] == numbers[100:200]
    shuffled = np.random.default_rng(0).permutation(rows)[rows - 1100 :][:550]
    assert numbers[200:300] == shuffled[100:200].tolist()


def test_repeated_sentences_stay_apart_in_the_protocol(tmp_path):
    columns = {"premise": ["same ."] * 400, "hypothesis": [f"other {k} ." for k in range(400)]}
    table = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(train=table, validation=table).save_to_disk(tmp_path / "s")
    ids = [s.id for s in corpus(f"snli:{tmp_path / 's'}") if s.text == "same ."]
    assert len(ids) == len(set(ids)) == 2 and ids[1] == f"{ids[0]}#2"
    dev = corpus(f"snli-dev:{tmp_path / 's'}")
    assert texts(dev).count("same .") == 1
    assert dev.counts["repeated"] == 399


@pytest.fixture
def xsum_folder(tmp_path):
    columns = {
        "document": ["A long story."] * 50,
        "summary": [f"Summary {k} ." for k in range(50)],
        "id": [str(k) for k in range(50)],
    }
    table = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict(train=table, validation=table).save_to_disk(tmp_path / "xsum")
    return tmp_path / "xsum"


def test_xsum_follows_the_protocol(xsum_folder, monkeypatch):
    expected = [f"Summary {k} ." for k in np.random.default_rng(0).permutation(50)]
    assert texts(corpus(f"xsum:{xsum_folder}")) == expected
    monkeypatch.setenv("MLMJOINT_XSUM", str(xsum_folder))
    assert texts(corpus("xsum", n=4)) == expected[:4]
    plain = corpus("xsum-validation")
    assert texts(plain) == [f"Summary {k} ." for k in range(50)]
    assert set(texts(corpus("xsum-validation", n=9, seed=2))) < set(texts(plain))


def test_folders_that_do_not_fit(xsum_folder, tmp_path):
    refuse(f"snli:{tmp_path}/nowhere", "no folder .*nowhere' for snli; give a datasets folder")
    refuse(f"snli:{xsum_folder}", r"no column 'premise' \(it has document, summary, id\)")
    empty = tmp_path / "empty"
    empty.mkdir()
    refuse(f"xsum:{empty}", "has no readable split 'validation' .*give a folder written by save_to")
    table = datasets.Dataset.from_dict({"summary": ["One two ."]})
    datasets.DatasetDict(train=table).save_to_disk(tmp_path / "train-only")
    refuse(f"xsum:{tmp_path / 'train-only'}", "has no readable split 'validation'")
    numbers = datasets.Dataset.from_dict({"summary": [1, 2]})
    datasets.DatasetDict(validation=numbers).save_to_disk(tmp_path / "numbers")
    refuse(f"xsum-validation:{tmp_path / 'numbers'}", "row 0 of validation has 1 in column summary")


@pytest.mark.parametrize("spec", ["snli", "xsum", "snli-dev", "xsum-validation"])
def test_hub_out_of_reach(spec):
    name = spec.split("-")[0]
    refuse(spec, f"cannot get .* from the hub.*as {name}:FOLDER or in MLMJOINT_{name.upper()}")


# Tokens


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from mlmjoint.models.mlm import load

    return load(tiny_model, device="cpu").tokenizer


def sentences(*lines):
    return [corpora.Sentence(line, str(k)) for k, line in enumerate(lines)]


def test_encode_skips_and_truncates_and_counts(tokenizer):
    counts = Counter()
    given = sentences("a man .", "man", "a " * 30, "the dog is [MASK] .", "zebra runs")
    found = list(encode(given, tokenizer, max_length=10, counts=counts))
    assert [item.sentence.id for item in found] == ["0", "2", "4"]
    assert counts == {"skipped": 2}
    assert [item.truncated for item in found] == [False, True, False]
    assert [len(item.input_ids) for item in found] == [5, 10, 4]
    assert found[1].input_ids[-1] == tokenizer.sep_token_id, "truncated the tokenizer's way"
    assert found[0].special == [True, False, False, False, True]
    assert found[2].special == [True, False, False, True], "unknown words are text"


def test_encode_can_be_told_what_is_text(tokenizer):
    known = tokenizer.convert_tokens_to_ids(["a", "man", "."])
    counts = Counter()
    given = sentences("a dog man .", "a dog", "dog")
    (found,) = encode(given, tokenizer, counts=counts, text=known)
    assert found.special == [True, False, True, False, False, True] and counts["skipped"] == 2


def test_encode_can_keep_one_token_sentences(tokenizer):
    (found,) = encode(sentences("man"), tokenizer, min_tokens=1)
    assert len(found.input_ids) == 3
