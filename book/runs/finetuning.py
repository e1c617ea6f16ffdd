"""Fine-tuning for chapter 23: sentiment, sentence pairs and names; one run for each corpus.

python -m book.runs.finetuning sst --data sst5_sentences.tsv --scratch FOLDER
python -m book.runs.finetuning snli --data snli_train60k.tsv --dev snli_dev.jsonl --scratch FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from mlmjoint import files
from mlmjoint.tasks import examples, finetuning, pretrained, tagging
from mlmjoint.train.data import detokenise

from . import begin

CORPORA = {
    "sst": ("sentiment", "text,label3"),
    "snli": ("pair", "premise,hypothesis,label"),
    "rte": ("pair", "premise,hypothesis,label"),
    "mrpc": ("pair", "sentence1,sentence2,paraphrase"),
    "conll": ("tag", "tokens,tags"),
}
SETTINGS = {
    "sst": {"epochs": 2, "learning_rate": 1e-4, "balance": 0.5},
    "snli": {"epochs": 1, "learning_rate": 1e-4},
    "rte": {"epochs": 3, "learning_rate": 1e-4, "max_length": 192},
    "mrpc": {"epochs": 3, "learning_rate": 1e-4},
    "conll": {"epochs": 1, "learning_rate": 2e-4},
}
# Sentences of our own, whose predictions are stored word by word: no text of a corpus is.
OWN = {
    "sst": [
        ("A warm and funny film.", "positive"),
        ("Two hours that I will never get back.", "negative"),
        ("Not bad at all.", "positive"),
        ("Hardly the masterpiece that it wants to be.", "negative"),
        ("The film runs for ninety minutes.", "neutral"),
    ],
    "snli": [
        ("A man sleeps on a bench.", "A person is outdoors.", "neutral"),
        ("A man sleeps on a bench.", "Nobody is awake or asleep here.", "contradiction"),
        ("Three dogs run on a beach.", "Some animals are moving.", "entailment"),
        ("The girl is not singing.", "The girl is singing.", "contradiction"),
    ],
    "conll": [
        ("Anna Kovac left Port Vellen for the Daily Herald in May .",
         "B-PER I-PER O B-LOC I-LOC O O B-ORG I-ORG O O O"),
        ("Washington beat Chelsea 2-1 , said Jordan Hill .",
         "B-ORG O B-ORG O O O B-PER I-PER O"),
        ("The Turkish minister met lawyers of Apple in Paris , Texas .",
         "O B-MISC O O O O B-ORG O B-LOC O B-LOC O"),
        ("May Smith saw the World Cup in Nice in April .",
         "B-PER I-PER O O B-MISC I-MISC O B-LOC O O O"),
    ],
}  # fmt: skip
VARIANTS = ("all", "mean", "head", "fresh", "plain", "IO", "BIOES")


class MeanPooled(torch.nn.Module):
    """The classifier of a model on the mean of the text's last hidden states, not on [CLS]."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, attention_mask, **inputs):
        states = self.model.base_model(attention_mask=attention_mask, **inputs)[0]  # (B, T, d)
        mask = attention_mask[..., None].float()  # (B, T, 1)
        mean = (states * mask).sum(1) / mask.sum(1)  # (B, d)
        return argparse.Namespace(logits=self.model.classifier(self.model.dropout(mean)))


def read(name: str, data: str, dev: str | None) -> dict:
    """The parts of a corpus that are used: train, valid and test."""
    task, fields = CORPORA[name]
    parts = {}
    if name == "snli":
        parts["train"] = examples.read_examples(f"tsv:{data}:{fields}:in_dev=0", task)
        parts["test"] = examples.read_examples(f"jsonl:{dev}:{fields}", task)
        return parts
    for part in ("train", "dev", "valid", "validation", "test"):
        try:
            found = examples.read_examples(f"tsv:{data}:{fields}:split={part}", task)
        except examples.InputError:
            continue  # the corpus has no such part
        if name == "sst":
            found.texts[:] = [(detokenise(text),) for (text,) in found.texts]
        parts["valid" if part in ("dev", "validation") else part] = found
    if "test" not in parts:  # RTE's test labels are not public
        parts["test"] = parts.pop("valid")
    return parts


def linear(parts: dict, field: int) -> dict:
    """Logistic regression on TF-IDF of words and bigrams of one text field."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    vectors = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    x = vectors.fit_transform([text[field] for text in parts["train"].texts])
    labels = parts["train"].label_names()
    model = LogisticRegression(max_iter=500).fit(x, parts["train"].labels)
    guess = model.predict(vectors.transform([text[field] for text in parts["test"].texts]))
    gold = np.array([labels.index(label) for label in parts["test"].labels])
    return finetuning.label_scores(gold, np.array([labels.index(g) for g in guess]), labels)


def majority(parts: dict) -> dict:
    """Always the label that is commonest in training."""
    labels = parts["train"].label_names()
    best = max(labels, key=parts["train"].labels.count)
    gold = np.array([labels.index(label) for label in parts["test"].labels])
    return finetuning.label_scores(gold, np.full_like(gold, labels.index(best)), labels)


def train(name, parts, base, variant, seed, number, scratch) -> dict:
    """One model: trained, chosen on the validation part if there is one, scored on the test."""
    scheme = variant if variant in tagging.SCHEMES else "BIO"
    if CORPORA[name][0] == "tag":
        parts = {
            key: examples.Examples(
                "tag", part.texts, [tagging.convert(t, scheme) for t in part.labels], part.about
            )
            for key, part in parts.items()
        }
    data = parts["train"]
    if number:
        order = np.random.default_rng(seed).permutation(len(data))
        data = data.part(sorted(order[:number].tolist()))
    settings = dict(SETTINGS[name])
    if variant == "plain":
        settings["balance"] = 0.0
    if variant == "head":
        settings |= {"learning_rate": 1e-2}
    model, tokenizer, labels = finetuning.new_head(base, data, scheme, seed, variant == "head")
    if variant == "fresh":
        torch.manual_seed(seed)
        tag = CORPORA[name][0] == "tag"
        auto = AutoModelForTokenClassification if tag else AutoModelForSequenceClassification
        model = auto.from_config(model.config)
    if variant == "mean":
        model = MeanPooled(model)
    out = Path(scratch) / f"{name}-{base}-{variant}-{seed}-{number or 'all'}"
    began = time.process_time()
    # Only sentiment overfits within its epochs; elsewhere the last checkpoint is kept.
    valid = parts.get("valid") if name == "sst" else None
    training = finetuning.fit_task(
        model, tokenizer, labels, data, out, valid, seed=seed, device="cpu", **settings
    )
    longest = pretrained.longest_text(model, tokenizer, settings.get("max_length", 128))
    rows = finetuning.task_rows(tokenizer, parts["test"], labels, longest)
    scores = finetuning.task_scores(model, tokenizer, rows, parts["test"], labels)
    shutil.rmtree(out, ignore_errors=True)
    return {
        "labels": labels,
        "examples": len(data),
        "steps": training["steps"],
        "kept_step": training["kept_step"],
        "core_minutes": round((time.process_time() - began) / 60, 1),
        "settings": settings,
        **scores,
        **(
            {"own": answers(name, model, tokenizer, labels, scheme, longest)} if name in OWN else {}
        ),
    }


def answers(name, model, tokenizer, labels, scheme, longest) -> list[dict]:
    """What the model says of our own sentences: text, gold, and what it predicts."""
    task = CORPORA[name][0]
    texts, gold = [row[:-1] for row in OWN[name]], [row[-1] for row in OWN[name]]
    if task == "tag":
        texts = [tuple(text.split()) for (text,) in texts]
        gold = [tagging.convert(tags.split(), scheme) for tags in gold]
    own = examples.Examples(task, texts, gold, {})
    rows = finetuning.task_rows(tokenizer, own, labels, longest)
    found = finetuning.predict(model, tokenizer, rows)
    if task == "tag":
        tags = finetuning.predicted_tags(rows, found, labels, map(len, texts))
        parts = zip(texts, gold, tags, strict=True)
        return [{"words": list(w), "gold": g, "predicted": t} for w, g, t in parts]
    shares = [
        {c: round(float(v), 4) for c, v in zip(labels, np.exp(row), strict=True)} for row in found
    ]
    parts = zip(texts, gold, shares, strict=True)
    return [{"text": list(t), "gold": g, "probabilities": p} for t, g, p in parts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("--data", required=True, help="the corpus: a file with a column split")
    parser.add_argument("--dev", help="SNLI's dev set, which is the test here: JSON Lines")
    parser.add_argument("--scratch", required=True, help="a folder for checkpoints")
    parser.add_argument("--models", nargs="+", default=["minilm"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["all"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--numbers", nargs="+", type=int, default=[0], help="examples; 0 for all")
    args = parser.parse_args()
    used = [path for path in (args.data, args.dev) if path]
    about = {"seed": "in each row", "model": "in each row"}
    about["data"] = {Path(path).name: files.sha256(path) for path in used}
    run = begin(f"finetuning-{args.corpus}", f"finetuning {args.corpus}", **about)
    parts = read(args.corpus, args.data, args.dev)
    baselines = {} if CORPORA[args.corpus][0] == "tag" else {"majority": lambda: majority(parts)}
    if args.corpus in ("sst", "snli"):
        baselines["linear"] = lambda: linear(parts, -1)
    for name, score in baselines.items():
        if run.one(model=name) is None:
            run.add(model=name, variant="", seed=0, **score())
    for seed in args.seeds:
        for base in args.models:
            for variant in args.variants:
                for number in args.numbers:
                    facts = {"model": base, "variant": variant, "seed": seed, "number": number}
                    if run.one(**facts) is None:
                        facts |= train(
                            args.corpus, parts, base, variant, seed, number, args.scratch
                        )
                        print(run.add(**facts), flush=True)


if __name__ == "__main__":
    main()
