"""Held-out results of pretraining as text, beside their baselines."""

from .engine.progress import clock


def summary(results: dict[str, float]) -> str:
    """Held-out results of pretraining in a line, beside their baselines."""
    text = f"held-out MLM loss {results['mlm_loss']:.3f} (unigram {results['unigram_entropy']:.3f})"
    text += f", accuracy {results['mlm_accuracy']:.1%}"
    if "nsp_accuracy" in results:
        text += f", NSP accuracy {results['nsp_accuracy']:.1%} (majority {results['nsp_majority']:.1%})"
    return text


def results_table(results: dict) -> str:
    """The held-out results of a finished run beside their baselines, as text."""
    found = results["validation"]
    rows = [
        ("MLM loss (nats)", f"{found['mlm_loss']:.3f}", f"{found['unigram_entropy']:.3f}  word frequencies alone"),
        ("MLM perplexity", f"{found['mlm_perplexity']:,.0f}", ""),
        ("MLM accuracy", f"{found['mlm_accuracy']:.1%}", f"{found['most_frequent_accuracy']:.1%}  always one word"),
    ]
    if found.get("mlm_loss_without_copies") is not None:
        unigram = f"{found['unigram_entropy_without_copies']:.3f}  {found['mlm_copied']:.1%} of the words are copies"
        rows.insert(1, ("  without copies", f"{found['mlm_loss_without_copies']:.3f}", unigram))
    if found["nsp_accuracy"] is not None:
        rows.append(("NSP loss (nats)", f"{found['nsp_loss']:.3f}", "0.693  guessing"))
        majority = f"{found['nsp_majority']:.1%}  always one answer"
        rows.append(("NSP accuracy", f"{found['nsp_accuracy']:.1%}", majority))
    lines = [f"{'held-out text':<18}{'this model':>12}   baseline"]
    lines += [f"{name:<18}{value:>12}   {baseline}" for name, value, baseline in rows]
    lines.append(f"{results['steps']:,} steps, {results['tokens']:,} tokens in {clock(results['seconds'])}")
    return "\n".join(lines)
