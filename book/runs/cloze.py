"""Which of several real fillings of two neighbouring gaps is the right one? For chapter 19.

    python -m book.runs.cloze --data snli_dev.jsonl --n 1500

A frame is the word to the left of two gaps and the token to the right of them. The wrong fillings
come from other sentences with the same frame, so that people have written each of them in this
very place: a random sentence brings one, as the frequent fillings are right more often. No word
occurs twice at one gap. Of the sentences about one picture at most one is asked about.
"""

import argparse
import hashlib
import random
import time
from collections import defaultdict
from pathlib import Path

import torch
from tqdm import tqdm

from mlmjoint import files, load
from mlmjoint.models import pair_head
from mlmjoint.names import METHODS
from mlmjoint.tasks import mutual_information
from mlmjoint.tasks.prompts import AROUND, HEAD, candidate_sets, set_joints
from mlmjoint.text import corpora

from . import begin

SEED = 19
OPTIONS = 10  # real fillings, the right one among them; 10 x 10 recombinations of their words


def read(mlm, path) -> tuple[list, dict]:
    """(premise, text, token ids, places of gaps) of each sentence; the fillings of every frame."""
    vocabulary = mlm.tokenizer.convert_ids_to_tokens(range(mlm.embedded))
    word = [token.isalpha() for token in vocabulary]
    starts = [not token.startswith("##") for token in vocabulary]
    sentences, frames = {}, defaultdict(list)
    for _, row in corpora.records("jsonl", path):
        for text in (row["premise"], row["hypothesis"]):
            ids = mlm.encode(text)
            if text in sentences or mlm.tokenizer.unk_token_id in ids:
                continue
            places = [
                t
                for t in range(2, len(ids) - 3)  # not the first word: [CLS] is no neighbour
                if word[ids[t]] and word[ids[t + 1]] and starts[ids[t + 2]]
            ]
            for t in places:
                frames[ids[t - 1], ids[t + 2]].append((ids[t], ids[t + 1]))
            sentences[text] = row["premise"], text, ids, places
    return [*sentences.values()], frames


def others(gold: tuple[int, int], fillings: list, rng: random.Random) -> list[tuple[int, int]]:
    """The right filling and others of its frame, no word twice at a gap; fewer if there are not."""
    chosen = [gold]
    for filling in rng.sample(fillings, len(fillings)):
        if all(filling[k] not in {f[k] for f in chosen} for k in (0, 1)):
            chosen.append(filling)
        if len(chosen) == OPTIONS:
            break
    return chosen


def questions(mlm, path, n: int) -> list[tuple[str, list[int], int, list]]:
    """Text, token ids, the place of the first gap, and the fillings, the right one first."""
    sentences, frames = read(mlm, path)
    rng, used, found = random.Random(SEED), set(), []
    rng.shuffle(sentences)
    for premise, text, ids, places in sentences:
        if premise in used or len(found) == n:
            continue
        for t in rng.sample(places, len(places)):
            chosen = others((ids[t], ids[t + 1]), frames[ids[t - 1], ids[t + 2]], rng)
            if len(chosen) == OPTIONS:
                found.append((text, ids, t, chosen))
                used.add(premise)
                break
    return found


def answers(mlm, ids: list[int], place: int, fillings: list, methods, head) -> dict:
    """What each construction chooses, and its surprise at the right filling.

    option : its choice among the fillings, a digit; 0 is right
    cell : its choice among all recombinations of their words, a digit for each gap
    right : 1 if the likeliest of all pairs of the candidate sets is the right one
    nll : of the right filling, among the recombinations
    information : of AG, between the two gaps, in nats
    """
    pair, words = mlm.pair(ids, (place, place + 1)), torch.tensor(fillings).T.contiguous()
    tokens = candidate_sets(mlm, pair, words.tolist(), AROUND)
    rows, cols = map(torch.searchsorted, tokens, words)  # (10,)
    out = {}
    for name, q in set_joints(mlm, pair, methods, tokens, head).items():
        ((i, j, _),) = q.top_cells(1)
        grid = q.log_prob(rows[:, None], cols)  # (10, 10)
        out[name] = {
            "option": f"{int(grid.diagonal().argmax())}",
            "cell": f"{int(grid.argmax()):02}",
            "right": f"{int((i, j) == (rows[0], cols[0]))}",
            "nll": [round(-float(grid.flatten().log_softmax(0)[0]), 2)],
        }
        if name == "ag":
            out[name]["information"] = [round(mutual_information(q), 3)]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="JSON Lines with premise and hypothesis")
    parser.add_argument("--model", default="en-small")
    parser.add_argument("--n", type=int, default=1500, help="sentences")
    args = parser.parse_args()
    mlm = load(args.model, device="cpu")
    data = {Path(args.data).name: files.sha256(args.data)}
    about = {"model": mlm.name, "data": data, "options": OPTIONS, "around": AROUND}
    run = begin("cloze", seed=SEED, sentences=args.n, **about)
    methods, head, about_head = list(METHODS), None, {}
    if mlm.name in pair_head.shipped_heads():
        methods, head = [*methods, HEAD], pair_head.load_head(mlm.name)
        digest = files.sha256(pair_head.HEADS / mlm.name / pair_head.WEIGHTS)
        about_head = {HEAD: {"sha256": digest}}
    missing = [name for name in methods if run.one(method=name) is None]
    if not missing:
        return
    asked, began = questions(mlm, args.data, args.n), time.process_time()
    columns = {name: {} for name in missing}
    for _, *question in tqdm(asked, disable=None):
        for name, found in answers(mlm, *question, missing, head).items():
            for key, value in found.items():  # letters of a string, or a list
                columns[name][key] = columns[name][key] + value if key in columns[name] else value
    minutes = round((time.process_time() - began) / 60, 1)
    if run.one(method="asked") is None:
        sentences = [hashlib.sha256(text.encode()).hexdigest()[:12] for text, *_ in asked]
        run.add(method="asked", sentences=sentences, places=[place for _, _, place, _ in asked])
    for name in missing:
        run.add(method=name, core_minutes=minutes, **about_head.get(name, {}), **columns[name])


if __name__ == "__main__":
    main()
