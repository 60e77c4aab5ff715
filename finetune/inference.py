"""What a fine-tuned model makes of encoded texts."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import torch

from model.bert import BertWithHead
from pretrain.engine.batches import share
from pretrain.engine.distributed import World

from .batches import BatchMaker
from .tasks import Task


@torch.inference_mode()
def outputs(
    task: Task,
    model: BertWithHead,
    maker: BatchMaker,
    precision: Callable[[], AbstractContextManager],
    world: World,
) -> np.ndarray:
    """The task's outputs for each text, the mean over its windows: float32 [n, C].

    The processes of `world` share the texts and have the same result. Dropout is off; the model's mode is put back.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    encoded = maker.encoded
    found = np.zeros((encoded.num_texts, task.num_outputs), dtype=np.float32)
    for sequences, batch in maker.sequences(share(encoded.lengths(), world)):
        with precision():
            logits = model(batch.to(device)).logits
        each = task.outputs(logits).cpu() * batch.weights[:, None]
        np.add.at(found, encoded.text[sequences], each.numpy())
    model.train(was_training)
    return world.sum_tensor(torch.from_numpy(found)).numpy()
