"""README.md of a model folder: the metadata that model hubs read, and a page of sections and tables in Markdown."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def metadata(
    kind: str, name: str, dataset: str, metrics: Iterable[tuple[str, float]], library: bool = True, language: str = "",
    family: str = "bert",
) -> str:  # fmt: skip
    """The block in front of the page, in YAML.

    Args:
        kind: the task as hubs call it.
        name: of the model, for the index.
        dataset: what the metrics were measured on.
        metrics: (name as hubs have it, value).
        library: whether transformers can use the model for the task.
        language: a code; left out if empty.
        family: of the model.
    """
    values = "\n".join(f"    - {{type: {metric}, value: {_four_digits(value)}}}" for metric, value in metrics)
    library_name = "library_name: transformers\n" if library else ""
    of_language = f'language: "{language}"\n' if language else ""
    return f"""{library_name}pipeline_tag: {kind}
{of_language}tags: [{family}, {kind}, domain-bert]
model-index:
- name: {name}
  results:
  - task: {{type: {kind}}}
    dataset: {{type: private, name: {dataset}}}
    metrics:
{values}"""


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def page(block: str, title: str, introduction: str, sections: Mapping[str, str]) -> str:
    """The whole file: metadata, title, and sections by their headings."""
    parts = [f"---\n{block}\n---", f"# {title}", introduction]
    parts += [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    return "\n\n".join(parts) + "\n"


def _four_digits(value: float) -> str:
    """A number of YAML: four digits behind the point, or five in all where it is small or large."""
    return f"{value:.4f}" if value == 0 or 0.001 <= abs(value) < 1e6 else f"{value:.4e}"
