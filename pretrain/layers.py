"""Which layers of an existing BERT a run takes over: all, every second one (Sanh et al. 2019, section 3), or some."""

from collections.abc import Sequence

import torch

from model import BertForPreTraining

from .engine.settings import PretrainError
from .settings import PretrainSettings


def every_second(num_layers: int) -> list[int]:
    """Half of the layers, at least one: the first, the last, and others as evenly between them as there are numbers.

    Of 12 layers 0, 2, 4, 7, 9 and 11, as Sanh et al. (2019) took them; of two or three the first one.
    """
    count = max(1, num_layers // 2)
    return [0] if count == 1 else [round(place * (num_layers - 1) / (count - 1)) for place in range(count)]


def kept_layers(settings: PretrainSettings, num_layers: int) -> list[int]:
    """The numbers of the layers that the run takes over from a model of `num_layers` layers.

    Raises:
        PretrainError: `--keep-layers` names one that is not there.
    """
    if settings.keep_layers == "half":
        return every_second(num_layers)
    if isinstance(settings.keep_layers, str):
        return list(range(num_layers))
    chosen = settings.layers_named
    if chosen[-1] >= num_layers:
        raise PretrainError(
            f"--keep-layers {chosen[-1]} is not there: {settings.starts_from} has the layers 0 to {num_layers - 1}"
        )
    return chosen


@torch.no_grad()
def with_layers(model: BertForPreTraining, layers: Sequence[int]) -> BertForPreTraining:
    """A model of these layers, with everything else as it was."""
    smaller = type(model)(model.config.changed(num_hidden_layers=len(layers)))
    for name, module in smaller.named_children():
        if name != "bert":
            module.load_state_dict(getattr(model, name).state_dict())
    for name, module in smaller.bert.named_children():
        if name != "layers":
            module.load_state_dict(getattr(model.bert, name).state_dict())
    every = model.bert.layers.in_order()
    for layer, number in zip(smaller.bert.layers.in_order(), layers, strict=True):
        layer.load_state_dict(every[number].state_dict())
    return smaller
