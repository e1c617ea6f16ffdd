"""Word senses and anisotropy for chapter 22, from SemCor, the all-words sets and CoarseWSD-20.

python -m book.runs.senses --semcor semcor.tsv --allwords allwords_eval.tsv --coarse coarsewsd20.tsv
"""

import argparse
import csv
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from mlmjoint import files
from mlmjoint.analysis import bootstrap, sign_flip
from mlmjoint.tasks import anisotropy, load_encoder, senses, spread

from . import begin

MAPS = ("raw", "centred", "z-scored", "top removed")
SAMPLE = 4000  # word vectors for the measures of spread
EACH = 10  # random examples of each sense of SemCor that are averaged
MOST = {"train": 100, "test": 200}  # random sentences of CoarseWSD-20: of a sense, of a word


def rows_of(path):
    with open(path, encoding="utf-8", newline="\n") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_wordnet(path):
    """A text with WordNet's sense keys, and for each instance its data set."""
    text, sets = senses.SenseText(), []
    for row in rows_of(path):
        items = list(senses.wordnet_instances(row["instances"] or ""))
        text.add(row["tokens"], items)
        sets += [row.get("dataset")] * len(items)
    return text, sets


def read_coarse(path):
    """{word: {split: text}} of CoarseWSD-20, at most MOST random sentences of a training sense and
    of a test word, and {word: its most frequent sense} in the whole training part.
    """
    words = defaultdict(lambda: {"train": senses.SenseText(), "test": senses.SenseText()})
    rows, seen = list(rows_of(path)), Counter()
    for k in np.random.default_rng(0).permutation(len(rows)):
        row = rows[k]
        key = row["split"], row["word"], row["sense"] * (row["split"] == "train")
        seen[key] += 1
        if seen[key] <= MOST[row["split"]]:
            item = int(row["index"]), row["word"], [row["sense"]]
            words[row["word"]][row["split"]].add(row["tokens"].replace("_", "-"), [item])
    frequent = {}
    for (split, word, sense), _ in sorted(seen.items(), key=lambda item: item[1]):
        if split == "train":
            frequent[word] = sense
    return {word: words[word] for word in sorted(words)}, frequent


def choices(depth: int) -> dict:
    """Each layer by itself, and the mean of the last four: names and functions of (…, L + 1, d)."""
    named = {f"layer {k}": (lambda v, k=k: v[..., k, :]) for k in range(depth + 1)}
    return {**named, "last four": lambda v: v[..., -4:, :].mean(-2)}


def all_words(run, name, mlm, semcor, allwords, sets) -> None:
    """F1 of each layer on the all-words sets, against the most frequent sense; the maps' effect."""
    began = time.process_time()
    words = {instance.word for instance in allwords.instances}
    training = semcor.sample(words, EACH)
    known = senses.learn_senses(training, senses.instance_vectors(mlm, training), semcor.instances)
    asked, vectors = [i.word for i in allwords.instances], senses.instance_vectors(mlm, allwords)
    minutes = round((time.process_time() - began) / 60, 1)
    frequent = [known.most_frequent(word) for word in asked]
    baseline = senses.sense_scores(allwords.instances, frequent)
    ambiguous = np.array([len(known.names.get(word, ())) > 1 for word in asked])
    many = vectors[np.random.default_rng(0).permutation(len(vectors))[:SAMPLE]]

    def add(layer, change, scores):
        right, base = np.array(scores.pop("right"), float), np.array(baseline["right"], float)
        by_set = defaultdict(list)
        for dataset, value in zip(sets, right, strict=True):
            by_set[dataset].append(value)
        answered = scores["recall"] / max(scores["precision"], 1e-9)
        scale = 2 / (1 + answered)  # F1 = scale × the share of right answers
        run.add(
            task="all words",
            model=name,
            layer=layer,
            map=change,
            n=len(right),
            **scores,
            interval=[scale * v for v in bootstrap(right)],
            gain=list(bootstrap(scale * (right - base))),
            p=sign_flip(right - base),
            ambiguous=int(ambiguous.sum()),
            ambiguous_accuracy=right[ambiguous].mean(),
            recall_by_set={key: float(np.mean(v)) for key, v in by_set.items()},
            core_minutes=minutes,
        )

    add("most frequent sense", "", dict(baseline))
    for layer, choose in choices(vectors.shape[1] - 1).items():
        at, here, sample = known.layer(choose), choose(vectors), choose(many)
        for change in MAPS:
            change_of = spread(sample, change)
            scores = senses.sense_scores(allwords.instances, at.nearest(asked, here, change_of))
            add(layer, change, scores)
            about = anisotropy(change_of(sample))
            run.add(
                task="anisotropy",
                model=name,
                layer=layer,
                map=change,
                n=len(sample),
                cosine=about["cosine"],
                shares=[float(v) for v in np.cumsum(about["shares"])[:10]],
            )


def coarse(run, name, mlm, words, frequent) -> None:
    """Accuracy on each word of CoarseWSD-20, with the senses' means from its training part."""
    for word, parts in words.items():
        if run.select(task="coarse", model=name, word=word):
            continue
        began = time.process_time()
        known = senses.learn_senses(parts["train"], senses.instance_vectors(mlm, parts["train"]))
        test = parts["test"]
        asked, vectors = [i.word for i in test.instances], senses.instance_vectors(mlm, test)
        row = {}
        for layer, choose in choices(vectors.shape[1] - 1).items():
            answers = known.layer(choose).nearest(asked, choose(vectors))
            row[layer] = senses.sense_scores(test.instances, answers)["recall"]
        always = [frequent[word]] * len(asked)
        row["most frequent sense"] = senses.sense_scores(test.instances, always)["recall"]
        run.add(
            task="coarse",
            model=name,
            word=word,
            n=len(asked),
            train=len(parts["train"].instances),
            senses=len(known.names[word]),
            accuracy=row,
            core_minutes=round((time.process_time() - began) / 60, 2),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--semcor", required=True)
    parser.add_argument("--allwords", required=True)
    parser.add_argument("--coarse", required=True)
    parser.add_argument("--models", nargs="+", default=["minilm", "en-small"])
    args = parser.parse_args()
    used = args.semcor, args.allwords, args.coarse
    data = {Path(path).name: files.sha256(path) for path in used}
    run = begin("senses", model="in each row", data=data)
    semcor, _ = read_wordnet(args.semcor)
    allwords, sets = read_wordnet(args.allwords)
    words, frequent = read_coarse(args.coarse)
    for name in args.models:
        mlm = load_encoder(name, device="cpu")
        if not run.select(task="all words", model=name):
            all_words(run, name, mlm, semcor, allwords, sets)
        coarse(run, name, mlm, words, frequent)


if __name__ == "__main__":
    main()
