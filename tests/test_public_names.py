"""What programs may import, with the parameters it takes: as tests/public_names.txt has it.

To change it knowingly: PYTHONPATH=. python tests/test_public_names.py > tests/public_names.txt, and a line in
CHANGELOG.md.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import data_prep
import finetune
import model
import pretrain

PACKAGES = (data_prep, finetune, model, pretrain)
KNOWN = Path(__file__).with_name("public_names.txt")


def parameters(function: object) -> str:
    """Names, kinds and defaults; annotations are spelled otherwise by every version of Python."""
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def members(kind: type) -> Iterator[str]:
    """The public methods and properties of a class, and of those of this project that it is made from."""
    for base in kind.__mro__:
        package = base.__module__.split(".")[0]
        own = sorted(name for name in vars(base) if not name.startswith("_"))
        for name in own if package in {p.__name__ for p in PACKAGES} else ():
            found = inspect.getattr_static(base, name)
            if inspect.isfunction(found) or isinstance(found, classmethod | staticmethod):
                yield f"{package}.{base.__name__}.{name}{parameters(getattr(base, name))}"
            elif hasattr(found, "__get__"):
                yield f"{package}.{base.__name__}.{name}"


def public_names() -> Iterator[str]:
    for package in PACKAGES:
        for name in package.__all__:
            place, found = f"{package.__name__}.{name}", getattr(package, name)
            if inspect.isclass(found) and issubclass(found, BaseException):
                yield f"{place}({', '.join(base.__name__ for base in found.__mro__[1:-1])})"
            elif inspect.isclass(found):
                yield f"{place}{parameters(found)}"
                yield from members(found)
            else:
                yield place + (parameters(found) if callable(found) else "")


def test_what_programs_import_is_what_it_was():
    assert sorted(set(public_names())) == KNOWN.read_text(encoding="utf-8").splitlines(), (
        "if on purpose: PYTHONPATH=. python tests/test_public_names.py > tests/public_names.txt, and a line in "
        "CHANGELOG.md"
    )


if __name__ == "__main__":
    print(*sorted(set(public_names())), sep="\n")
