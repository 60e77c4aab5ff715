"""A word embedding of which a training learns some rows: those of the words that its texts hold."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SomeRows(nn.Embedding):
    """An embedding that learns K of its V rows; in eval mode it looks up all of them.

    The other rows would get no gradient. They are not part of a parameter, so they take no memory for gradients and
    optimizer state, and weight decay does not shrink them.

    Args:
        whole: the embedding [V, E] to train rows of. Its table is shared, and written to.
        ids: int64, the rows to learn, in any order, repeats allowed. Row 0 is always learned, because it fills up
            batches. In training any other id raises IndexError; on a GPU it fails an assertion of the kernel.
    """

    rows: Tensor
    """int64 [K], ascending: which they are."""
    table: Tensor
    """[V, E]; the rows that are learned are up to date after `eval()` or `whole()`."""
    _place: Tensor

    def __init__(self, whole: nn.Embedding, ids: Tensor) -> None:
        rows = torch.cat([ids.new_zeros(1), ids]).unique().to(whole.weight.device)
        place = rows.new_full((whole.num_embeddings,), len(rows)).scatter(0, rows, torch.arange(len(rows)).to(rows))
        at = len(rows) if whole.padding_idx is None else int(place[whole.padding_idx])
        padding, learned = at if at < len(rows) else None, whole.weight.detach()[rows]
        super().__init__(len(rows), whole.embedding_dim, padding_idx=padding, _weight=learned)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("table", whole.weight.detach(), persistent=False)
        self.register_buffer("_place", place, persistent=False)

    def forward(self, input: Tensor) -> Tensor:
        """ids [...] -> [..., E]."""
        if not self.training:
            return F.embedding(input, self.table)
        return F.embedding(self._place[input], self.weight, self.padding_idx)

    def train(self, mode: bool = True) -> "SomeRows":
        """See torch; on the way to eval mode the table takes up what was learned."""
        if not mode:
            self.whole()
        return super().train(mode)

    @torch.no_grad()
    def whole(self) -> Tensor:
        """The table [V, E] with what was learned until now."""
        return self.table.index_copy_(0, self.rows, self.weight)


def learning(whole: nn.Embedding, ids: Tensor) -> nn.Embedding:
    """An embedding that learns these rows alone, where that saves memory: their copy has to be less than the gradient
    and the two moments of the others. Else, and for a subclass that computes something of its own, `whole` itself.

    Args:
        ids: see `SomeRows`.
    """
    saves = 4 * len(ids.unique()) < 3 * whole.num_embeddings
    return SomeRows(whole, ids) if saves and type(whole) is nn.Embedding else whole
