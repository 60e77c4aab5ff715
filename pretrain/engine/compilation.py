"""Layers through torch.compile, which makes single kernels of what is computed between their matrix products."""

from collections.abc import Callable

import torch
from torch import nn

from data_prep.errors import UserError
from model.encoder import EncoderLayer


def compile_layers(model: nn.Module, rehearse: Callable[[], object]) -> str | None:
    """Have the layers of a model compiled, for any number of tokens, where they compute with gradients.

    Evaluations compute as before: they are a small part of a run, and would need kernels of their own.

    Args:
        rehearse: a forward and a backward pass, in which the layers are compiled; what fails in it leaves nothing
            behind.

    Returns:
        None, or why it cannot be done; then the layers are as they were.
    """
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer)]
    try:
        # Torch keeps few versions of a function, and those of an earlier model count.
        torch.compiler.reset()
        compiled = torch.compile(EncoderLayer.compute, dynamic=True)
        for layer in layers:
            layer.compiled = compiled
        rehearse()
    except UserError:
        raise
    # A compiler that is missing, or fails, raises errors of many kinds.
    except Exception as error:
        for layer in layers:
            layer.compiled = None
        cause = getattr(error, "inner_exception", error)
        return (str(cause).strip() or type(cause).__name__).partition("\n")[0]
    return None
