"""Training text: how it is read, split and cleaned of near copies."""

import json
import re

from training_text import SENTENCES

from mlmjoint import files
from mlmjoint.text import corpora
from mlmjoint.train import data


def test_near_copies_of_the_excluded_text_are_dropped():
    barred = ["A man walks down the busy street with his dog.", "The dog is outside."]
    copies = [
        "a man walks down the busy street with his dog",
        "A man walks down the busy street with his big dog.",
        "The dog is outside!",
    ]
    fresh = ["The cat is outside.", "A woman walks along a beach.", "A man walks his dog."]
    assert data.drop_near_copies(copies + fresh, barred) == fresh
    # The slow twin: every pair compared in full.
    sets = [data._bigrams(s) for s in SENTENCES[::29]]

    def near(sentence, overlap=0.5):
        b = data._bigrams(sentence)
        return any(len(b & s) >= overlap * len(b | s) for s in sets)

    kept = data.drop_near_copies(SENTENCES, SENTENCES[::29], overlap=0.5)
    assert kept == [s for s in SENTENCES if not near(s)]
    assert 0 < len(kept) < len(SENTENCES) - len(sets)


def test_near_copies_are_found_in_every_script():
    assert data.words("It's SNAKE_case, 3rd.") == ["it", "s", "snake", "case", "3rd"]
    barred = ["Собака бежит по улице.", "犬が走る。", "Die Straße ist naß.", "?!"]
    copies = ["собака бежит по улице", "犬が走る", "DIE STRASSE IST NASS!"]
    fresh = ["Кошка спит в доме.", "猫が寝ている。", "Le café est fermé.", "…", "!!!", "_"]
    assert data.drop_near_copies(copies + fresh, barred) == fresh
    for sentence in SENTENCES:
        assert data.words(sentence) == re.findall("[a-z0-9]+", sentence.lower())


def test_text_is_read_as_a_study_reads_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_bytes("\ufeffA dog.\r\nA\u2028cat.\n\nA dog.\n".encode())
    rows = [{"p": "A dog .", "h": None}, {"p": "A\u2028cat.", "h": "A bird."}]
    lines = [json.dumps(row, ensure_ascii=False) for row in [*rows, rows[0]]]
    (tmp_path / "a.jsonl").write_bytes(("\ufeff" + "\n".join(lines)).encode())
    assert data.read_sentences("~/a.txt") == ["A dog.", "A cat."]
    assert data.read_sentences("jsonl:~/a.jsonl:p,h") == ["A dog.", "A cat.", "A bird."]
    for spec in ("text:~/a.txt", "jsonl:~/a.jsonl:p,h"):
        expected = [data.detokenise(sentence.text) for sentence in corpora.corpus(spec)]
        assert data.read_sentences(spec) == expected
        row = data.describe_source(spec)
        assert row["sha256"] == files.sha256(tmp_path / row["file"])


def test_neighbours_stay_on_one_side_of_the_split():
    sentences = [f"s{i}" for i in range(1000)]
    part, aside = data.hold_out(sentences, 0.2, seed=0)
    assert sorted(part + aside) == sorted(sentences)
    assert len(aside) == 200
    assert {int(s[1:]) // 100 for s in part}.isdisjoint({int(s[1:]) // 100 for s in aside})


def test_tokenisation_is_undone():
    for tokenised, plain in (
        ("A dog 's ear .", "A dog's ear."),
        ("They are n't here , I think .", "They aren't here, I think."),
        ("A sign says `` STOP '' .", 'A sign says " STOP ".'),
        ("It's a man's dog, isn't it?", "It's a man's dog, isn't it?"),
    ):
        assert data.detokenise(tokenised) == plain
