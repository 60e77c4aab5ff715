"""Reading a corpus, and being refused one."""

import os
import re

import pytest

from data_prep.errors import PrepError
from data_prep.text.corpus import Corpus


@pytest.fixture(scope="session")
def read():
    """The lines of each document of the paths."""

    def read(*paths, **settings) -> list[list[str]]:
        return [document.lines for document in Corpus([str(path) for path in paths], **settings).documents()]

    return read


@pytest.fixture(scope="session")
def refused():
    """Making the corpus or reading it fails with a message that matches, the folder of the test left out."""

    def refused(path, message: str, **settings) -> None:
        with pytest.raises(PrepError) as error:
            list(Corpus([str(path)], **settings).documents())
        shown = str(error.value).replace(f"{path}/", "").replace(f"{os.path.dirname(path)}/", "")
        assert re.search(message, shown), shown

    return refused
