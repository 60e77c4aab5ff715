"""Next sentence prediction (Devlin et al. 2019, section 3.1, task 2) beside always one answer."""

from .pair_labels import PairLabels


class NextSentence(PairLabels):
    """NSP: whether B follows A (0) or is of another document (1)."""

    name, learned = "nsp", "next sentences (NSP)"
    metrics = ("nsp_loss", "nsp_accuracy", "nsp_majority")
    baselines = {"accuracy": "nsp_majority"}
