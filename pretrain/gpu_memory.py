"""The memory that training takes on a GPU, computed from the sizes of the model.

What tensors hold is counted, in bytes for each hidden unit of each token, and agrees to a tenth with a trace of whole
steps (benchmarks/trace_gpu.py). What kernels need beside it, and gaps between tensors, are assumed.
"""

from dataclasses import dataclass

from model import BertConfig, parameter_count

from .engine.device import tokens_at_once
from .masked_words import SCORES_AT_ONCE_ON_GPU

# GB of the GPUs that a plan speaks of.
GPUS = (16, 24, 80)
# CUDA itself, bytes; and the share of the rest that tensors may fill.
_CUDA, _FILLED = 0.5e9, 0.9
# Copies in float32 of the layers' matrices that Muon's step has beside their momentum.
_MUON_COPIES = 5


@dataclass(frozen=True)
class GpuMemory:
    """Of steps of one process, in bytes.

    Args:
        optimizer: "adamw" or "muon".
        precision: "bf16", "fp16" or "fp32".
        masked: share of the tokens that are predicted.
        heads: how many of these score the vocabulary for each of them.
    """

    config: BertConfig
    optimizer: str
    precision: str
    masked: float
    heads: int = 1

    def peak(self, tokens: int) -> float:
        """The most that tensors hold in a step of several micro-batches of this many tokens."""
        of_optimizer = 4 * _MUON_COPIES * self._matrices() if self.optimizer == "muon" else 0
        between = self._of_weights() - self._copies()
        return max(self._of_weights() + tokens * self.of_token() + self._of_scores(tokens), between + of_optimizer)

    def _of_scores(self, tokens: int) -> float:
        """Two float32 copies of the scores that the cross entropy looks at together."""
        return 2 * 4 * min(SCORES_AT_ONCE_ON_GPU, self.masked * tokens * self.config.vocab_size)

    def _of_weights(self) -> float:
        """Weights, gradients, the optimizer's state, and the copies of a micro-batch."""
        return 8 * parameter_count(self.config) + self._state() + self._copies()

    def _copies(self) -> float:
        """The weights in 16 bits, which autocast makes for a micro-batch."""
        return 0 if self.precision == "fp32" else 2 * parameter_count(self.config)

    def of_token(self) -> float:
        """What a token's forward pass keeps for its backward pass."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        # What products read and make; what norms read is float32.
        number, norm = 4 if self.precision == "fp32" else 2, 4
        # The kernel for packed sequences needs bf16; padded rectangles have a copy of the result.
        results = 1 if self.precision == "bf16" else 2
        key_value = 3 * number * hidden
        rest = (2 + results) * number * hidden + 2 * norm * hidden + 2 * number * inner
        layers = (self.config.num_hidden_layers - 1) * (key_value + rest)
        # The last layer computes key and value alone of what is not masked.
        last = key_value + self.masked * (norm * hidden + rest)
        # The scores and their gradient.
        scores = self.heads * self.masked * 2 * number * self.config.vocab_size
        return layers + last + self._of_embeddings(number, norm) + scores

    def _of_embeddings(self, number: int, norm: int) -> int:
        """What their norm reads, and what it makes, or a projection reads and makes."""
        hidden, embedded = self.config.hidden_size, self.config.embedding_size
        made = number * (embedded + hidden) if self.config.has_projection else norm * hidden
        return norm * embedded + made

    def _state(self) -> int:
        momenta = 2 * parameter_count(self.config) - (self._matrices() if self.optimizer == "muon" else 0)
        return 4 * momenta

    def _matrices(self) -> int:
        """Entries of the layers' matrices, which are Muon's; that of the MLM head may be too, and is small."""
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        return self.config.num_stored_layers * (4 * hidden * hidden + 2 * hidden * inner)

    def fitting(self, size: float, longest: int) -> int | None:
        """The most tokens at once on a GPU of `size` GB, in whole thousands, no more than the default; None where one
        example of `longest` tokens does not fit."""
        room = _FILLED * (size * 1e9 - _CUDA)
        if self.peak(longest) > room:
            return None
        tokens = (room - self._of_weights() - self._of_scores(tokens_at_once("cuda"))) / self.of_token()
        tokens = int(tokens / 1000) * 1000
        return min(tokens_at_once("cuda"), max(longest, tokens))

    def of_gpus(self, longest: int) -> str:
        """The --micro-batch-tokens for GPUs of some sizes, for a plan."""
        found = {size: self.fitting(size, longest) for size in GPUS}
        parts = [f"{size} GB: {'too small' if tokens is None else f'{tokens:,}'}" for size, tokens in found.items()]
        return f"{', '.join(parts)} (--micro-batch-tokens that fit in {self.precision}; computed, not measured)"
