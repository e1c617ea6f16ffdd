"""Matrices between positions of a sentence: attention scores, attention weights."""

from collections.abc import Mapping, Sequence

import torch

from .style import colour_bar, house_style, panels


@house_style()
def draw_matrices(
    matrices: Mapping[str, torch.Tensor],
    tokens: Sequence[str],
    label: str,
    axes=("position that reads", "position that is read"),
    across: int = 2,
):
    """Heatmaps {title: (T, T)} over the tokens of a sentence, on one colour scale.

    Cells that are not finite, such as masked scores, stay blank.
    """
    blocks = {title: torch.as_tensor(m).detach().double().cpu() for title, m in matrices.items()}
    finite = torch.cat([block[block.isfinite()] for block in blocks.values()])
    size, across = len(tokens), min(across, len(blocks))
    down = -(-len(blocks) // across)
    width, height = 1.4 + (0.6 + 0.24 * size) * across, 0.6 + (0.7 + 0.24 * size) * down
    figure, grid = panels(len(blocks), across, width, height, sharey=True)
    for axis, (title, block) in zip(grid.flat, blocks.items(), strict=False):
        shown = block.masked_fill(~block.isfinite(), torch.nan).numpy()
        image = axis.imshow(shown, vmin=float(finite.min()), vmax=float(finite.max()))
        axis.set_xticks(range(size), tokens, rotation=90)
        axis.set_yticks(range(size), tokens)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set(title=title, xlabel=axes[1])
    for axis in grid[:, 0]:
        axis.set_ylabel(axes[0])
    colour_bar(figure, image, grid, label)
    return figure
