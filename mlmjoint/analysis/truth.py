"""The structure of the true joint of a toy pair: mutual information, and blocks.

Call a token at A and a token at B linked if the pair can occur. The links cut the true joint into
**blocks**, whose tokens never meet those of another block. Conditionals say nothing about how much
probability a block has: with several blocks they do not determine the joint.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from ..core.reference import kl
from ..errors import InputError
from ..studies.records import Study
from ..text.corpora import corpus
from ..text.toy_world import ToyWorld

KINDS = ("independent", "one block", "several blocks")
ROUNDING = 1e-9  # nats; less information than this is rounding error


class Structure(NamedTuple):
    """How the two open words of a toy sentence depend on each other under the true joint."""

    information: float  # mutual information, nats
    blocks: int

    @property
    def kind(self) -> str:
        return KINDS[2 if self.blocks > 1 else int(self.information > 0)]


def structure(log_joint: torch.Tensor) -> Structure:
    """Mutual information KL(joint ‖ product of its marginals) and number of blocks.

    >>> half = torch.tensor([[0.5, 0.0], [0.0, 0.5]]).log()
    >>> structure(half).blocks, round(structure(half).information, 4)
    (2, 0.6931)
    """
    logs = log_joint.double()
    information = float(kl(logs, logs.logsumexp(1, keepdim=True) + logs.logsumexp(0)))
    blocks = int(block_labels(log_joint).max()) + 1
    return Structure(0.0 if information < ROUNDING else information, blocks)


def block_labels(log_joint: torch.Tensor) -> np.ndarray:
    """The block of every pair, counted from 0, (V, V); -1 where the pair cannot occur."""
    possible = np.isfinite(log_joint.numpy())
    rows, cols = np.nonzero(possible)
    size = len(possible) + possible.shape[1]
    # Nodes: tokens at A, then tokens at B; an impossible token is a component of its own.
    links = sparse.coo_array((np.ones(len(rows)), (rows, len(possible) + cols)), (size, size))
    label = connected_components(links, directed=False)[1][rows]
    labels = np.full(possible.shape, -1)
    labels[rows, cols] = np.unique(label, return_inverse=True)[1]
    return labels


def block_weights(log_joint: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """The probability of each block under a joint, (blocks,); the sum is below one if it leaks."""
    inside = labels >= 0
    return np.bincount(labels[inside], log_joint.double().exp().numpy()[inside])


def error_parts(truth: torch.Tensor, log_joint: torch.Tensor) -> tuple[float, float]:
    """KL(truth ‖ joint) as the error about one word alone and about the other given it.

    Both in nats, each the mean over the two orders (A first, B first); they add up to the whole.
    """
    truth, log_joint = truth.double(), log_joint.double()
    alone = float(sum(kl(truth.logsumexp(k), log_joint.logsumexp(k), dim=0) for k in (0, 1)) / 2)
    return alone, float(kl(truth, log_joint)) - alone


def structures(study: Study) -> list[Structure]:
    """The structure of every pair of a stored toy study: its sentences are drawn again."""
    if study.manifest["data"]["name"] != "toy":
        raise InputError(f"{study.folder} is not a study of toy sentences; its truth is not known")
    world = ToyWorld()
    sentences = corpus("toy", study.manifest["data"]["sentences"], study.manifest["seed"])
    text = {sentence.id: sentence.text for sentence in sentences}
    places = ((text[record["sentence"]], *record["positions"]) for record in study.records)
    return [structure(world.true_joint(*place)) for place in places]
