"""The other side of a comparison of training steps: `BertForPreTraining` of transformers, set up as well as it can be.

Its MLM head runs on the masked rows alone (`model.bert`, `index_select`, `model.cls.predictions`); its attention, and
the division of a batch into groups by length, are those that are fastest on the machine. Autocast as ours, dropout 0,
padding to the longest of a group and no mask where nothing is padded, fused AdamW with the same groups, the same
clipping, no wait for the device in the step. It starts from our weights and reads the examples of our packed batches,
so it computes the same loss.
"""

import tempfile
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from model import BertForPreTraining
from pretrain.batches import PretrainingBatch
from pretrain.engine.device import Precision
from pretrain.settings import PretrainSettings

NEEDS = "needs transformers (pip install 'transformers>=5'), which is not installed"
IGNORED = -100
NAMES = ("mlm", "nsp")
# Of the peak learning rate: the speed is all that is measured.
LEARNING_SHARE = 0.01


def is_installed() -> bool:
    """Whether there is a peer at all."""
    from importlib.util import find_spec

    return find_spec("transformers") is not None


@dataclass(frozen=True)
class Padded:
    """A padded micro-batch: the arguments of transformers' forward, and what is to be predicted."""

    inputs: dict[str, Tensor]
    labels: Tensor
    """[N, L], -100 where nothing is to be predicted."""
    masked_places: Tensor
    """[M], the others as places in [0, N * L)."""
    next_sentence_label: Tensor
    """[N]"""

    def to(self, device: str) -> "Padded":
        inputs = {name: sent(value, device) for name, value in self.inputs.items()}
        targets = (self.labels, self.masked_places, self.next_sentence_label)
        return Padded(inputs, *(sent(value, device) for value in targets))


def sent(values: Tensor, device: str) -> Tensor:
    """Values on a device; the host goes on at once, as what is copied to a GPU lies in pinned memory."""
    return (values.pin_memory() if device == "cuda" else values).to(device, non_blocking=True)


def padded(packed: list[PretrainingBatch], groups: int) -> list[Padded]:
    """The examples of packed micro-batches as `groups` padded ones, similar lengths together."""
    rows = [row for batch in packed for row in _rows(batch)]
    rows.sort(key=lambda row: len(row[0]))
    chunks = [chunk for chunk in np.array_split(np.arange(len(rows)), groups) if len(chunk)]
    return [_rectangle([rows[place] for place in chunk]) for chunk in chunks]


def _rows(batch: PretrainingBatch) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of each example: ids, token types, labels (-100 where nothing is to be predicted), next-sentence label."""
    labels = torch.full_like(batch.input_ids, IGNORED)
    labels[batch.masked_positions] = batch.masked_targets
    lengths = batch.sequence_starts.diff().tolist()
    columns = (values.split(lengths) for values in (batch.input_ids, batch.token_type_ids, labels))
    return list(zip(*columns, batch.pair_targets, strict=True))


def _rectangle(rows: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Padded:
    ids, types, labels, following = zip(*rows, strict=True)
    fillings = ((ids, 0), (types, 0), (labels, IGNORED))
    ids_, types_, labels_ = (pad_sequence(list(v), batch_first=True, padding_value=fill) for v, fill in fillings)
    inputs = {"input_ids": ids_, "token_type_ids": types_}
    lengths = torch.tensor([len(row) for row in ids])
    if len(set(lengths.tolist())) > 1:
        inputs["attention_mask"] = (torch.arange(ids_.shape[1]) < lengths[:, None]).long()
    places = (labels_.flatten() != IGNORED).nonzero().squeeze(1)
    return Padded(inputs, labels_, places, torch.stack(following))


def targets(batches: list[Padded]) -> Tensor:
    """Numbers of masked tokens and labelled pairs [2] of a global batch."""
    counts = [[len(batch.masked_places), int((batch.next_sentence_label >= 0).sum())] for batch in batches]
    return torch.tensor(counts).sum(0).clamp(min=1)


class TransformersTraining:
    """One side: takes optimizer steps on padded micro-batches.

    Args:
        start: the model of ours whose weights it starts from.
        settings: learning rate, weight decay, clipping, precision and device, resolved.
        attention: "sdpa" or "eager".
        masked_rows: the MLM head runs on the masked rows alone. False: on all rows, -100 ignored, as in the forward of
            `BertForPreTraining`.
        compiled: through torch.compile, for any length.
    """

    def __init__(
        self,
        start: BertForPreTraining,
        settings: PretrainSettings,
        attention: str = "sdpa",
        masked_rows: bool = True,
        compiled: bool = False,
    ):
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as folder:
            start.save_pretrained(folder)
            self.model = transformers.BertForPreTraining.from_pretrained(
                folder, attn_implementation=attention, dtype=torch.float32
            )
        self.model.to(settings.device).train()
        if compiled:
            called = (self.model.bert, self.model.cls.predictions) if masked_rows else (self.model,)
            for part in called:
                part.compile(dynamic=True)
        self.device, self.clip_norm, self.masked_rows = settings.device, settings.clip_norm, masked_rows
        self.precision = Precision(settings.device, settings.precision)
        decayed = {id(m.weight) for m in self.model.modules() if isinstance(m, nn.Linear | nn.Embedding)}
        parameters = list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if id(p) in decayed], "weight_decay": settings.decay},
            {"params": [p for p in parameters if id(p) not in decayed], "weight_decay": 0.0},
        ]
        rate = settings.learning_rate * LEARNING_SHARE
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.999), eps=1e-6, fused=True)

    def losses(self, batch: Padded, totals: Tensor) -> Tensor:
        """MLM and NSP loss [2] of a micro-batch: its share of the means over `totals` targets."""
        labels = batch.labels.flatten()
        if self.masked_rows:
            encoded = self.model.bert(**batch.inputs)
            rows, labels = (
                values.index_select(0, batch.masked_places)
                for values in (encoded.last_hidden_state.flatten(0, 1), labels)
            )
            scores, relation = self.model.cls.predictions(rows), self.model.cls.seq_relationship(encoded.pooler_output)
        else:
            found = self.model(**batch.inputs)
            scores, relation = found.prediction_logits.flatten(0, 1), found.seq_relationship_logits
        pairs = ((scores, labels), (relation, batch.next_sentence_label))
        sums = [F.cross_entropy(*pair, ignore_index=IGNORED, reduction="sum") for pair in pairs]
        return torch.stack(sums).float() / totals

    def step(self, batches: list[Padded]) -> tuple[dict[str, Tensor], Tensor]:
        """One optimizer step; the losses before it and the norm of the gradient before clipping."""
        totals, total = sent(targets(batches), self.device), torch.zeros(2, device=self.device)
        for batch in batches:
            with self.precision():
                losses = self.losses(batch.to(self.device), totals)
            losses.sum().backward()
            total += losses.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return dict(zip(NAMES, total, strict=True)), norm

    @torch.no_grad()
    def exact_losses(self, batches: list[Padded]) -> dict[str, float]:
        """The losses of a global batch in float32, without a step."""
        totals = targets(batches).to(self.device)
        total = sum(self.losses(batch.to(self.device), totals) for batch in batches)
        return dict(zip(NAMES, total.tolist(), strict=True))
