"""book/models.md: every model that the book uses, from its card."""

import re
import shlex

from mlmjoint import files
from mlmjoint.analysis import costs
from mlmjoint.models import pair_head, wheels
from mlmjoint.models.wheels import Checkpoint
from mlmjoint.names import UNARY, short_name
from mlmjoint.train.cards import CARD, read_card, render
from mlmjoint.train.pair_head import TEMPLATE

from . import stored
from .markdown import dense, header, join, link, table

SNAPSHOT = re.compile(r"(.+)-step-0*(\d+)")

INTRO = """\
# Models

Shipped models are loaded by name, `mlmjoint.load("en-small")`, without a network. So are
those contained in PyPI wheels; they are downloaded on first use, checked against a hash,
converted to safetensors and cached, and `mlmjoint fetch NAME` does so in advance.
The description of a model that was trained here comes from the card that `mlmjoint train` wrote
next to its weights.
"""
TRAINED = """\
`{c[name]}` is not shipped. With your own text, one sentence per line,
`mlmjoint train --recipe {c[recipe]} --data text:captions.txt --out {c[name]}` trains one from the
wheel of its initialiser; load it by the path of its folder. The one in this book was trained
for {c[training][steps]:,} steps of {c[training][batch_size]} sentences, {c[training][epochs]:g}
epochs of {text}.
"""
SHORTER = """\
### Why it predicts worse than {b[name]}

`{a[name]}` was trained on less text and for fewer steps than `{b[name]}`: {a[split][train]:,}
sentences and {a[training][steps]:,} steps of {a[training][batch_size]}, against
{b[split][train]:,} and {b[training][steps]:,} of {b[training][batch_size]}. Its higher
U-PPL on {mine[source]}, {mine[uppl]:.2f} against
{theirs[uppl]:.2f}, is due to that training and not to its size: in
[short training runs](#model-other-sizes) of equal length on the same text, {deep[layers]} layers
reach {deep[uppl]:.1f} and {flat[layers]} layers {flat[uppl]:.1f}. The two models split the same
text into different tokens, {mine[tokens]:,} and {theirs[tokens]:,}.
"""
COPIED = """\
### The text of its studies

They read `{spec}`: {source}, one sentence per line.
"""
AFTER = """\
U-PPL is exp of the mean −log p of a token that is the only one masked. For models trained here it
is measured on held-out text, named in their sections. For models from wheels it comes from the
first study in their section; it is not known whether they were trained on its text.
"""
SIZES = """\
(model-other-sizes)=
### Other sizes

Short training runs from the same initialiser on the same text ({source}), {steps:,} steps each:
only the comparison is meaningful, not the level. U-PPL is over the tokens of held-out sentences,
which differ between vocabularies. A pair is timed on two threads, from a sentence of 16 tokens to
all metrics of the paper's five constructions.
"""
SHIP_MB = 20
SHIPPED_SIZE = """\
Of those within {limit} MB, the limit for a shipped model, the one with {layers} layers and
V = {vocabulary:,} has the lowest U-PPL: `{name}` has this size. It takes {seconds:.1f} seconds for
the same pair, on {machine}.
"""
SEEN = """\
`{name}` was trained on a part of SNLI's training split, and by the published protocol `--data snli`
is drawn from that split, so it is not unseen text. Evaluate `{name}` on `--data snli-dev`.
"""


def page(_: str) -> str:
    """The whole page."""
    cards = [read_card(path.parent) for path in sorted(files.MODELS.glob(f"*/{CARD}"))]
    shipped = [card for card in cards if not SNAPSHOT.fullmatch(card["name"])]
    snapshots = [card for card in cards if SNAPSHOT.fullmatch(card["name"])]
    unshipped = [read_card(path.parent) for path in sorted(trained_folder().glob(f"*/{CARD}"))]
    lines = [*header("models"), INTRO, *map(_trained, unshipped)]
    headings = ["name", "V", "layers × width", "size", "U-PPL", "source", "licence"]
    rows = [_card_row(card, "ships with mlmjoint") for card in shipped]
    rows += [_card_row(card, "`mlmjoint train`") for card in unshipped]
    rows += [_wheel_row(checkpoint) for checkpoint in wheels.CHECKPOINTS.values()]
    lines += [*dense(table(headings, rows, align="lrrrrll")), AFTER]
    for card in [*shipped, *unshipped]:
        lines += _card_section(card)
        lines += _head_section(card["name"])
        if card not in shipped:
            lines += [*_shorter(card, shipped), *_copied(card)]
        lines += _sizes(card)
        own = [c for c in snapshots if SNAPSHOT.fullmatch(c["name"])[1] == card["name"]]
        lines += _snapshots(card, own) if own else []
    for checkpoint in wheels.CHECKPOINTS.values():
        lines += _wheel_section(checkpoint)
    return join(lines)


def trained_folder():
    """The cards of models that are too large to ship."""
    return files.profile_folder(stored.PROFILE) / "models"


def _trained(card: dict) -> str:
    """How to train a model that is not shipped, and how it was trained here."""
    read = (f"{d['sentences']:,} sentences of {d['source']}" for d in card["sources"])
    often = (f" read {d['repeats']} times each" * (d["repeats"] > 1) for d in card["sources"])
    return TRAINED.format(c=card, text=" and ".join(map("".join, zip(read, often, strict=True))))


def _shorter(card: dict, others: list[dict]) -> list[str]:
    """Why a model predicts worse than a smaller one, where less training explains it."""
    lines = []
    sizes = costs.measured("sizes")["sizes"]
    for other in others:
        rows = {row["source"]: row for row in other["evaluation"]}
        shared = [row for row in card["evaluation"] if row["source"] in rows]
        trials = {t["layers"]: t for t in sizes if t["V"] == other["model"]["vocabulary"]}
        deep, flat = (trials.get(c["model"]["layers"]) for c in (card, other))
        less = all(
            card[part][key] < other[part][key]
            for part, key in (("split", "train"), ("training", "steps"))
        )
        if not (less and shared and deep and flat and deep["uppl"] < flat["uppl"]):
            continue
        mine, theirs = shared[-1], rows[shared[-1]["source"]]
        if mine["uppl"] > theirs["uppl"]:
            parts = {"a": card, "b": other, "mine": mine, "theirs": theirs}
            lines.append(SHORTER.format(**parts, deep=deep, flat=flat))
    return lines


def _copied(card: dict) -> list[str]:
    """The file a model's studies read, where it is a plain copy of a corpus."""
    texts = set()
    for manifest in map(stored.manifest, stored.cells()):
        words = shlex.split(manifest["command"])
        spec = words[words.index("--data") + 1]
        if manifest["model"]["name"] == card["name"] and spec.startswith("text:"):
            texts.add(COPIED.format(spec=spec, source=manifest["data"]["source"]))
    return sorted(texts)


def _card_row(card: dict, source: str) -> list[str]:
    m, held_out = card["model"], card["evaluation"][-1]
    return [
        link(f"`{card['name']}`", f"model-{card['name']}"),
        f"{m['vocabulary']:,}",
        f"{m['layers']} × {m['hidden_size']}",
        f"{m['bytes'] / 1e6:.1f} MB",
        f"{held_out['uppl']:.2f}",
        source,
        card["licence"],
    ]


def _wheel_row(c: Checkpoint) -> list[str]:
    measured = list(_measured(c.name).values())
    return [
        link(f"`{c.name}`", f"model-{c.name}"),
        f"{c.vocab_size:,}",
        f"{c.layers} × {c.hidden_size}",
        f"{c.size / 1e6:.1f} MB",
        f"{measured[0].value:.2f}" if measured else "–",
        f"PyPI {c.requirement}",
        c.licence,
    ]


def _measured(name: str) -> dict:
    """U-PPL of a model's own conditionals in each of its stored studies."""
    cells = [c for c in stored.cells() if stored.manifest(c)["model"]["name"] == name]
    return {cell: stored.read(cell)["Perplexity"][short_name(UNARY)]["U-PPL"] for cell in cells}


def _card_section(card: dict) -> list[str]:
    """The card's own text, one level down, with a heading that can be linked to."""
    return [f"(model-{card['name']})=", *_lowered(render(card).text, 1), ""]


def _head_section(name: str) -> list[str]:
    """The card of the pair head that is shipped for a model."""
    if name not in pair_head.shipped_heads():
        return []
    _, *text = _lowered(render(pair_head.head_card(name), TEMPLATE).text, 2)
    return [f"(head-{name})=", f"### The pair head of {name}", *text, ""]


def _lowered(text: str, levels: int) -> list[str]:
    """The lines of a card with its headings so many levels down, and short hashes."""
    text = re.sub(r"^(#+) ", rf"{'#' * levels}\1 ", text.strip(), flags=re.M)
    return re.sub(r"`([0-9a-f]{16})[0-9a-f]{48}`", r"`\1…`", text).splitlines()


def _sizes(card: dict) -> list[str]:
    """How other sizes of the model compare, where that was measured."""
    trials = costs.measured("sizes")
    if trials["model"] != card["name"]:
        return []
    rows = [
        [
            str(one["layers"]),
            f"{one['V']:,}",
            f"{one['bytes'] / 1e6:.1f} MB",
            f"{one['uppl']:.1f}",
            f"{one['tokens']:,}",
            f"{one['training_seconds'] / 60:.1f}",
            f"{one['seconds_a_pair']:.1f}",
        ]
        for one in trials["sizes"]
    ]
    best = min(
        (one for one in trials["sizes"] if one["bytes"] <= SHIP_MB * 1e6),
        key=lambda one: one["uppl"],
    )
    headings = ["layers", "V", "size", "U-PPL", "tokens", "minutes of training", "seconds a pair"]
    return [
        *SIZES.format(source=trials["source"], steps=trials["sizes"][0]["steps"]).splitlines(),
        "",
        *table(headings, rows, align="r" * len(headings)),
        "",
        *SHIPPED_SIZE.format(
            limit=SHIP_MB,
            layers=best["layers"],
            vocabulary=best["V"],
            name=card["name"],
            seconds=trials["seconds_a_pair"],
            machine=trials["machine"],
        ).splitlines(),
        "",
        *SEEN.format(name=card["name"]).splitlines(),
        "",
    ]


def _snapshots(card: dict, snapshots: list[dict]) -> list[str]:
    rows = [
        [
            f"`{c['name']}`",
            f"{c['training']['kept_step']:,}",
            f"{c['evaluation'][-1]['uppl']:.2f}",
            f"{c['truth']['kl_mean']:.3f}",
        ]
        for c in [*snapshots, card]
    ]
    return [
        "### Snapshots",
        "",
        f"Snapshots of `{card['name']}` during training, each shipped and loaded by its name.",
        "",
        *table(["name", "step", "U-PPL", "KL(truth ‖ MLM), nats"], rows),
    ]


def _wheel_section(c: Checkpoint) -> list[str]:
    lines = [
        f"(model-{c.name})=",
        f"## {c.name}",
        "",
        f"A model of {c.data}, trained by the authors of [{_repository(c.source)}]({c.source}): "
        f"{c.architecture}, {c.layers} layers of width {c.hidden_size}, a vocabulary of "
        f"{c.vocab_size:,} tokens, {c.size / 1e6:.1f} MB on disk. It is contained in the PyPI "
        f"wheel {c.requirement} (sha256 `{c.sha256[:16]}…`; licence {c.licence}). The package "
        "itself is not installed: only its weights and vocabulary are read.",
        "",
    ]
    measured = _measured(c.name)
    if not measured:
        return lines
    rows = [
        [link(cell, f"study-{cell}"), f"{stored.count(cell):,}", entry]
        for cell, entry in measured.items()
    ]
    return lines + table(["study", "pairs", "U-PPL of its own conditionals"], rows)


def _repository(address: str) -> str:
    return "/".join(address.rstrip("/").split("/")[-2:])
