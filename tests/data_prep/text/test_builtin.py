import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from data_prep.text import builtin

READ_ALL = """
import json, sys
from data_prep.text import builtin
read = {"documents": list(builtin.documents()), "labelled": list(builtin.labelled())}
assert not {"torch", "numpy", "datasets", "matplotlib"} & set(sys.modules), "a package was imported"
json.dump(read, sys.stdout)
"""


@pytest.fixture(scope="module")
def read():
    """Everything, read by a process of its own: it must import none of the packages."""
    root = Path(builtin.__file__).parents[2]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", READ_ALL]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def documents(read):
    return [tuple(pair) for pair in read["documents"]]


@pytest.mark.slow
def test_there_are_about_ten_megabytes_of_documentation(documents):
    assert 5e6 < sum(len(text) for _, text in documents) < 30e6
    names = [name for name, _ in documents]
    assert len(names) == len(set(names)) > 1000
    assert {
        "argparse",
        "torch.nn.modules.linear",
        "datasets.arrow_dataset",
        "pydoc_data.topics.lambda",
    } <= set(names)


@pytest.mark.slow
def test_no_tests_and_no_vendored_code(documents):
    parts = Counter(part for name, _ in documents for part in name.split("."))
    assert not parts.keys() & {"tests", "testing", "_vendor", "site-packages"}


@pytest.mark.slow
def test_another_process_reads_the_same_in_the_same_order(documents, monkeypatch):
    monkeypatch.setattr(builtin, "PACKAGES", ("datasets",))
    builtin._modules.cache_clear()
    others = ("numpy.", "torch.", "matplotlib.")
    expected = [pair for pair in documents if not (pair[0] + ".").startswith(others)]
    assert list(builtin.documents()) == expected
    builtin._modules.cache_clear()


@pytest.mark.slow
def test_docstrings_are_those_python_itself_shows(documents):
    text = " ".join(dict(documents)["argparse"].split())
    tree = ast.parse(open(os.path.join(os.path.dirname(os.__file__), "argparse.py"), encoding="utf-8").read())
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and (doc := ast.get_docstring(node)):
            first = doc.split("\n")[0].strip()
            assert first in text


def test_docstrings_come_in_source_order_also_those_given_by_a_call(tmp_path):
    (tmp_path / "sub" / "tests").mkdir(parents=True)
    (tmp_path / "sub" / "__init__.py").write_text(
        '''"""Module."""
add_docstr(f, r"""f(x)

Of compiled f.
{input}
""".format(**common))
class A:
    """Class."""
    size = 1
    def b(self):
        """Method."""
        def inner():
            """Inner."""
        text = """not documentation
        """
def g(): pass
add_newdoc("m", "h", ("one", """Of compiled
h."""))
'''
    )
    (tmp_path / "sub" / "tests" / "a.py").write_text('"""A test."""')
    (tmp_path / "broken.py").write_text('"""For another Python."""\nprint "x"')
    assert list(builtin._package("p", "p.", tmp_path)) == [
        ("p.sub", "p", ("Module.", "f(x)\nOf compiled f.", "Class.", "Method.", "Inner.", "Of compiled h."))
    ]


def test_modules_come_in_the_order_of_their_names(tmp_path):
    names = ["q", "c", "x", "a", "m", "b", "z", "f"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('"""Words."""')
    assert [name for name, _, _ in builtin._package("p", "", tmp_path)] == sorted(names)


def test_wrapped_lines_are_joined_and_code_lists_and_fields_are_not():
    docstring = """Compute the thing that everybody has been waiting
    for since the morning, and return it.

    A second paragraph::

        x = 1
        y = 2

    * a point that is long enough to be wrapped at the margin of
      the page
    * another

    >>> f(1)
    2

    Args:
        size (int): how large
        name: what it is called

    Parameters
    ----------
    {input}
    """
    assert builtin.paragraphs(docstring).split("\n") == [
        "Compute the thing that everybody has been waiting for since the morning, and return it.",
        "A second paragraph::",
        "x = 1",
        "y = 2",
        "* a point that is long enough to be wrapped at the margin of the page",
        "* another",
        ">>> f(1)",
        "2",
        "Args:",
        "size (int): how large",
        "name: what it is called",
        "Parameters",
    ]


@pytest.mark.slow
def test_labelled_texts_do_not_name_their_package(read):
    labelled = [tuple(pair) for pair in read["labelled"]]
    labels = Counter(label for _, label in labelled)
    assert labels.keys() == {"python", "torch", "numpy", "datasets", "matplotlib"}
    assert min(labels.values()) >= 300
    assert len({text for text, _ in labelled}) == len(labelled)
    assert all(60 <= len(text) <= 2000 for text, _ in labelled)
    for text, _ in labelled:
        lower = text.lower()
        assert not any(name in lower for name in ("torch", "numpy", "matplotlib", "pyplot", "python"))
        assert not {"np", "plt", "datasets"} & set(lower.replace(".", " ").split())
    assert any(builtin.MASK in text for text, _ in labelled)
