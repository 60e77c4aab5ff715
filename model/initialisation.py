"""The values that a fresh model starts from: BERT's, and in pretraining some knowledge of word order."""

import math

import torch
from torch import Tensor, nn

# Root mean square of the position embeddings of a fresh model, twice that of the word embeddings (measured).
POSITION_SCALE = 0.04
# The longest wavelength, 100 * 2 pi positions, is a little over the longest sequence of BERT.
_WAVELENGTHS = 100.0


@torch.no_grad()
def initialise(module: nn.Module, std: float) -> None:
    """Fresh values for all parameters under `module`, as in the original release."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            initialise_parameter(part, name, parameter, std)


@torch.no_grad()
def initialise_parameter(owner: nn.Module, name: str, parameter: Tensor, std: float) -> None:
    """A normal truncated at two standard deviations for weights, 0 for biases, 1 for LayerNorm weights."""
    if name == "bias":
        nn.init.zeros_(parameter)
    elif isinstance(owner, nn.LayerNorm):
        nn.init.ones_(parameter)
    else:
        # The bounds of torch are absolute; its defaults, -2 and 2, would cut nothing.
        nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)


@torch.no_grad()
def look_at_neighbours(position: Tensor, qkv: Tensor, num_heads: int, projection: Tensor | None = None) -> None:
    """Initialise position embeddings as sinusoids, and the first layer's heads to attend to neighbouring tokens.

    Otherwise a model spends its first million tokens on learning word order.

    Head 0 attends one position ahead, head 1 one back, head 2 two ahead, and so on, but softly, because nearby
    sinusoids are similar. The query and key weights of a head are the same random projection, up to the rotation
    between the two positions (after Trockman and Kolter 2023, who use such projections without positions). All of it
    stays trainable.

    Args:
        position: [positions, E], the embeddings, filled in place; E is H where there is no projection.
        qkv: [3 H, H], the weights of query, key and value of the first layer, filled in place but for the value.
        projection: [H, E], the weights of the linear layer from the embeddings to the layers, filled in place. It is
            orthogonal, so that the heads can see what the embeddings were before it, and so large that its output has a
            variance of 1, as that of every layer has. Where E is larger than H, only the sinusoids of the shortest
            wavelengths fit through it, whole pairs of a sine and a cosine.
    """
    position.copy_(sinusoids(*position.shape) * POSITION_SCALE)
    query, key, _ = qkv.unflatten(0, (3, num_heads, -1))
    back = None
    if projection is not None:
        hidden, embedded = projection.shape
        seen = projection if embedded <= hidden else projection[:, : hidden // 2 * 2]
        squared_gain = max(1.0, hidden / embedded)
        projection.zero_()
        nn.init.orthogonal_(seen, gain=math.sqrt(squared_gain))
        back = seen.mT / squared_gain  # [E, H]
    for head in range(num_heads):
        offset = (head // 2 + 1) * (-1 if head % 2 else 1)
        own = nn.init.orthogonal_(key[head] if back is None else key.new_empty(key.shape[1], len(back)))  # [D, E]
        turned = own @ rotation(offset, own.shape[-1])
        if back is not None:
            key[head], turned = own @ back, turned @ back  # [D, H]
        query[head] = turned


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines of the position at wavelengths from 2 pi to 100 * 2 pi (Vaswani et al. 2017, section 3.5, with
    a constant for shorter sequences).

    Positions a fixed distance apart differ by one `rotation`, so a single attention matrix can look at "the word
    before"; from random embeddings the model has to learn that for each position by itself. float32 [length, width]
    with a root mean square of 1.
    """
    angle = torch.arange(length)[:, None] * _frequencies(width)
    return math.sqrt(2) * torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, -1)[:, :width]


def rotation(distance: int, width: int) -> Tensor:
    """The matrix that takes the sinusoids of any position, as a column, to those `distance` further: [width, width]."""
    angle = distance * _frequencies(width)
    sine, cosine = angle.sin(), angle.cos()
    blocks = torch.stack([cosine, sine, -sine, cosine], dim=-1).view(-1, 2, 2)
    return torch.block_diag(*blocks)[:width, :width]


def _frequencies(width: int) -> Tensor:
    """Radians a position of every pair of a sine and a cosine: float32 [ceil(width / 2)]."""
    return torch.exp(torch.arange(0, width, 2) * (-math.log(_WAVELENGTHS) / width))
