"""Which layers of an existing BERT a run takes over: all, every second one (Sanh et al. 2019, section 3), or some."""

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
