"""The command line, YAML files and printed settings, on small settings classes of this file."""

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.console.command_line import again, as_dict, differences, from_dict, main, to_yaml
from data_prep.console.options import POSITIONAL
from data_prep.errors import PrepError, UserError

ROOT = Path(__file__).parents[3]


@dataclass
class Preparation:
    vocab_size: int | Literal["auto"] = "auto"
    """Entries of the vocabulary, a multiple of 64, or auto."""

    corpus: list[str] = field(default_factory=list)
    """Files and folders with text."""

    lowercase: bool = True
    """Lower-case the text."""

    text_column: str | None = None
    """Column that holds the text."""

    def __post_init__(self) -> None:
        if self.vocab_size != "auto" and self.vocab_size % 64:
            raise ValueError(f"--vocab-size {self.vocab_size} is not a multiple of 64: use auto")


@dataclass
class Training:
    out: Path
    """Folder that is written."""

    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate decays."""

    learning_rate: float | None = None
    """Highest learning rate."""

    sequence_length: int = 128
    """Longest example, in tokens."""

    compile: bool = False
    """Compile the model."""

    stages: tuple[int, ...] = (1, 2)
    """Lengths, one after the other."""

    prep: Preparation = field(default_factory=lambda: Preparation(corpus=["builtin"]))
    """Preparation of the text."""


def read(*argv: str) -> Training:
    """The settings that `run` received."""
    got: list[Training] = []
    assert main(Training, got.append, prog="train", description="Train.", argv=argv) == 0
    return got[0]


def refused(capsys: pytest.CaptureFixture, *argv: str) -> str:
    """The one line on stderr of a command line that must not run."""

    def run(_: Training) -> None:
        raise AssertionError("ran in spite of a mistake")

    assert main(Training, run, prog="train", description="Train.", argv=argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def test_options_reach_their_fields_with_dashes_or_underscores_and_without_a_prefix() -> None:
    got = read(
        "--out",
        "x",
        "--vocab_size",
        "128",
        "--corpus",
        "a",
        "b",
        "--compile",
        "--no-lowercase",
        "--stages",
        "3",
    )
    prep = Preparation(vocab_size=128, corpus=["a", "b"], lowercase=False)
    assert got == Training(Path("x"), compile=True, stages=(3,), prep=prep)
    assert type(got) is Training and type(got.prep) is Preparation


def test_defaults_are_those_of_the_classes_also_of_a_nested_factory() -> None:
    assert read("--out", "x") == Training(Path("x"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ("--out", "x", "--seqence-length", "9"),
            "unknown option --seqence-length: did you mean --sequence-length?",
        ),
        (("--out", "x", "--vocab-sise=64"), "unknown option --vocab-sise: did you mean --vocab-size?"),
        (("--out", "x", "--qqqq"), "unknown option --qqqq (see --help)"),
        (("--out", "x", "-q"), "unknown option -q (see --help)"),
        (("--out", "x", "--no-schedule"), "unknown option --no-schedule"),
        (
            ("--out", "x", "--schedule", "liner"),
            "--schedule: 'liner' is not one of linear, cosine, constant: did you mean linear?",
        ),
        (("--out", "x", "--sequence-length", "1e3"), "--sequence-length: '1e3' is not a whole number"),
        (("--out", "x", "--learning_rate", "fast"), "--learning-rate: 'fast' is not a number"),
        (
            ("--out", "x", "--vocab-size", "outo"),
            "--vocab-size: 'outo' is not a whole number or auto: did you mean",
        ),
        (("--out", "x", "--stages", "1", "b"), "--stages: 'b' is not a whole number"),
        (("--out",), "--out: a value is missing: give a path"),
        (("--out", "--compile"), "--out: a value is missing: give a path"),
        ((), "--out is missing: give a path"),
        (("--out", "x", "y"), "--out takes one value: 'y' is one too many"),
        (("y", "--out", "x"), "unexpected argument 'y'"),
        (("--out", "x", "--compile", "yes"), "--compile takes no value: write --compile or --no-compile"),
        (("--out", "x", "--learning-rate", "-1e-5x"), "--learning-rate: '-1e-5x' is not a number"),
        (("--out", "x", "--stages", "1", "--", "y"), "unexpected argument 'y'"),
        (("--out", "x", "--corpus", ""), "--corpus: a value is missing: give a text, or several"),
        (("--out", "x", "--corpus", "a", "--corpus", "b"), "--corpus is given twice: put all its values after one"),
        (("--out", "x", "--text-column", ""), "--text-column: a value is missing: give a text"),
        (("--out", "x", "--text-column="), "--text-column: a value is missing: give a text"),
        (("--sequence-length", "x", "--sequence-length", "9", "--out", "x"), "--sequence-length: 'x' is not a whole"),
        (("--out", "x", "--config"), "--config: a value is missing"),
        (("--out", "x", "--config", "no/such.yaml"), "cannot read the settings file no/such.yaml"),
        (("--out", "x", "--vocab-size", "100"), "--vocab-size 100 is not a multiple of 64: use auto"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_remedy(
    capsys: pytest.CaptureFixture, argv: tuple[str, ...], message: str
) -> None:
    assert refused(capsys, *argv).startswith(message)


def test_an_error_of_the_user_during_the_run_exits_2_without_traceback(capsys: pytest.CaptureFixture) -> None:
    def run(_: Training) -> None:
        raise PrepError("a.txt is empty: give text")

    assert main(Training, run, prog="train", description="", argv=["--out", "x"]) == 2
    assert capsys.readouterr().err == "error: a.txt is empty: give text\n"


def test_an_interrupt_exits_130_and_a_defect_keeps_its_traceback(capsys: pytest.CaptureFixture) -> None:
    def interrupt(_: Training) -> None:
        raise KeyboardInterrupt

    def defect(_: Training) -> None:
        raise ValueError("a defect of the program")

    assert main(Training, interrupt, prog="train", description="", argv=["--out", "x"]) == 130

    class Slow(Training):
        def __post_init__(self) -> None:
            interrupt(self)

    assert main(Slow, interrupt, prog="train", description="", argv=["--out", "x"]) == 130
    assert capsys.readouterr().err == "interrupted\n" * 2
    with pytest.raises(ValueError, match="defect"):
        main(Training, defect, prog="train", description="", argv=["--out", "x"])


def test_config_entries_count_and_later_options_win(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("out: from-file\nlearning-rate: 1e-4\ncorpus: [a, b]\nlowercase: false\ntext_column: null\n")
    expected = Training(Path("from-file"), learning_rate=1e-4, prep=Preparation(corpus=["a", "b"], lowercase=False))
    assert read("--config", str(config)) == expected
    assert read(f"--config={config}", "--out", "y") == replace(expected, out=Path("y"))
    # The place of --config among the options does not matter.
    assert read("--lowercase", "--corpus", "c", "--config", str(config)).prep == Preparation(corpus=["c"])


@pytest.mark.parametrize("word", ["yes", "no"])
def test_a_bare_yes_or_no_in_a_config_is_that_word_where_no_truth_value_is_taken(tmp_path: Path, word: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"out: {word}\ntext_column: {word}\ncorpus: [{word}]\ncompile: {word}\n")
    got = read("--config", str(config))
    assert got.out == Path(word) and got.prep.text_column == word and got.prep.corpus == [word]
    assert got.compile is (word == "yes")


@pytest.mark.parametrize("word", ["Yes", "NO", "On", "007", "1.0", "1_000", "12:30", "2024-01-31", "None", "0x1f"])
def test_a_word_in_a_config_is_what_stands_there(tmp_path: Path, word: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"out: {word}\ntext_column: {word}\ncorpus: [{word}, b]\n")
    got = read("--config", str(config))
    assert got.out == Path(word) and got.prep.text_column == word and got.prep.corpus == [word, "b"]
    assert read("--out=x", f"--text-column={word}").prep.text_column == word


@pytest.mark.parametrize("word", ["true", "True", "YES", "on", "'yes'"])
def test_a_truth_value_in_a_config_may_be_spelled_as_yaml_does(tmp_path: Path, word: str) -> None:
    (tmp_path / "c.yaml").write_text(f"out: x\ncompile: {word}\nlowercase: {'no' if word == 'on' else 'False'}\n")
    got = read("--config", str(tmp_path / "c.yaml"))
    assert got.compile is True and got.prep.lowercase is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seqence_length: 9", "unknown setting seqence_length: did you mean sequence_length?"),
        ("vocab-sise: 64", "unknown setting vocab-sise: did you mean vocab_size?"),
        ("config: other.yaml", "unknown setting config"),
        ("schedule: liner", "schedule: 'liner' is not one of linear, cosine, constant: did you mean linear?"),
        ("sequence_length: 1.5", "sequence_length: '1.5' is not a whole number"),
        ("compile: yess", "compile: 'yess' is not one of True, False"),
        ("compile: 1", "compile: '1' is not one of True, False"),
        ("sequence_length: null", "sequence_length has no value: give a whole number, or leave it out"),
        ("out:", "out has no value: give a path, or leave it out"),
        ("schedule: [linear]", "schedule takes one of linear, cosine, constant, not a list"),
        ("prep: {vocab_size: 64}", "unknown setting prep"),
        ("out: {a: b}", "out takes a path, not a dict"),
        ("- out", "does not hold settings"),
        ("a: b: c", "is not valid YAML at line 1"),
        ("a\x00b", "is not valid YAML"),
        ("out: !!int foo", "is not valid YAML"),
        ("out: !!bool maybe", "is not valid YAML"),
        ("stages: [8, [16]]", "stages has a list in its list: write its values one by one"),
        ("out: " + "[" * 3000, "is not valid YAML"),
        ("vocab-size: 64\nvocab_size: 128", "vocab_size is set twice: leave one out"),
    ],
)
def test_a_mistake_in_a_config_names_the_file_and_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture, text: str, message: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    got = refused(capsys, "--out", "x", "--config", str(config))
    assert got.startswith(str(config)) and message in got


def test_a_wrong_value_in_a_config_is_refused_also_where_a_later_option_overrides_it(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("schedule: liner")
    assert "liner" in refused(capsys, "--config", str(config), "--out", "x", "--schedule", "linear")


words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
tricky = st.sampled_from(
    ["-x", "--out", "a=b", "-5", "null", "true", "no", "1e-4", "None", "007", "Yes", "ä b", "#c", "a: b", "x\ny"]
)
words = tricky | words
preparations = st.builds(
    Preparation,
    vocab_size=st.integers(1, 500).map(lambda n: 64 * n) | st.just("auto"),
    corpus=st.lists(words, max_size=3),
    lowercase=st.booleans(),
    # An empty one is that of a variable that is not set.
    text_column=st.none() | words.filter(bool),
)
trainings = st.builds(
    Training,
    out=words.filter(lambda word: "\x00" not in word).map(Path),
    schedule=st.sampled_from(["linear", "cosine", "constant"]),
    learning_rate=st.none() | st.floats(allow_nan=False),
    sequence_length=st.integers(-(10**9), 10**9),
    compile=st.booleans(),
    stages=st.lists(st.integers(-5, 5), max_size=3).map(tuple),
    prep=preparations,
)


@settings(max_examples=60, deadline=None)
@given(trainings)
def test_dict_and_yaml_give_the_same_settings_back(value: Training) -> None:
    assert from_dict(Training, as_dict(value)) == value
    assert from_dict(Training, yaml.safe_load(to_yaml(value))) == value


def as_arguments(value: Training, draw: st.DrawFn) -> list[str]:
    """A command line for these settings: options in any order, each in one of the ways to write it."""
    options = []
    for name, entry in as_dict(value).items():
        if entry is None:
            # No word stands for it.
            continue
        flag = name if draw(st.booleans()) else name.replace("_", "-")
        if isinstance(entry, bool):
            options.append([f"--{flag}" if entry else f"--no-{flag}"])
            continue
        first, *others = map(str, entry if isinstance(entry, list) else [entry])
        is_option = first.startswith("-") and first != "-5"
        options.append([f"--{flag}={first}"] if is_option or draw(st.booleans()) else [f"--{flag}", first])
        options[-1] += others
    return [token for option in draw(st.permutations(options)) for token in option]


def can_be_typed(value: Training) -> bool:
    """No list is empty or holds nothing but empty words; one that begins with a dash has to be the first behind `=`."""
    return bool(value.stages) and any(value.prep.corpus) and not any(w.startswith("-") for w in value.prep.corpus[1:])


@settings(max_examples=200, deadline=None)
@given(trainings.filter(can_be_typed), st.data())
def test_arguments_give_the_same_settings_back(value: Training, data: st.DataObject) -> None:
    arguments = as_arguments(value, data.draw)
    assert read(*arguments) == value, arguments


@dataclass
class Reading:
    text: Annotated[tuple[str, ...], POSITIONAL] = ()
    top_k: int = 5
    column: tuple[str, ...] = ()
    quiet: bool = False


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["a", "b"], Reading(("a", "b"))),
        (["--top-k", "3", "a", "--quiet", "b"], Reading(("a", "b"), 3, quiet=True)),
        (["a", "--top-k", "3", "b"], Reading(("a", "b"), 3)),
        (["a", "--column", "x", "y"], Reading(("a",), column=("x", "y"))),
        (["--column", "x", "--", "a", "--top-k", "--"], Reading(("a", "--top-k", "--"), column=("x",))),
        (["-", "-5"], Reading(("-", "-5"))),
        (["- a", "-b, too", "--quiet"], Reading(("- a", "-b, too"), quiet=True)),
    ],
)
def test_words_without_an_option_may_stand_among_the_options(argv: list[str], expected: Reading) -> None:
    got: list[Reading] = []
    assert main(Reading, got.append, prog="read", description="Read.", argv=argv) == 0
    assert got == [expected]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--quiet=a"], "--quiet takes no value: write --quiet or --no-quiet, without 'a'"),
        (["--text", "a"], "unknown option --text: write its value without an option"),
        (["a", "--top-k"], "--top-k: a value is missing: give a whole number"),
    ],
)
def test_a_mistake_beside_words_without_an_option(capsys: pytest.CaptureFixture, argv: list[str], message: str) -> None:
    assert main(Reading, print, prog="read", description="Read.", argv=argv) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_printed_settings_are_complete_ordered_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    argv = [
        "--out",
        "x",
        "--learning-rate",
        "1e-5",
        "--vocab-size",
        "640",
        "--corpus",
        "ä b",
        "no",
        "--compile",
    ]

    def run(_: Training) -> None:
        raise AssertionError("ran in spite of --print-config")

    assert main(Training, run, prog="train", description="", argv=[*argv, "--print-config"]) == 0
    printed = capsys.readouterr().out
    names = ["out", "schedule", "learning_rate", "sequence_length", "compile", "stages"]
    assert list(yaml.safe_load(printed)) == [*names, "vocab_size", "corpus", "lowercase", "text_column"]
    (tmp_path / "c.yaml").write_text(printed, encoding="utf-8")
    assert read("--config", str(tmp_path / "c.yaml")) == read(*argv)


def test_as_dict_holds_plain_values_only() -> None:
    plain = as_dict(Training(Path("a") / "b"))
    assert (
        plain["out"] == "a/b" and plain["stages"] == [1, 2] and plain["corpus"] == ["builtin"] and "prep" not in plain
    )


def test_from_dict_names_its_source() -> None:
    with pytest.raises(UserError, match="^OUT/settings.yaml: unknown setting scedule: did you mean schedule"):
        from_dict(Training, {"out": "x", "scedule": "linear"}, source="OUT/settings.yaml")


def test_differences_are_readable() -> None:
    old = {"batch_size": 32, "lr": None, "same": [1], "gone": True}
    new = {"same": [1], "batch_size": 64, "lr": 0.1, "fresh": "not set"}
    assert differences(old, new) == [
        "batch_size: 32 before, 64 now",
        "lr: None before, 0.1 now",
        "fresh: not set before, not set now",
        "gone: True before, not set now",
    ]
    assert differences(old, dict(reversed(old.items()))) == []


def test_two_settings_of_one_name_are_a_defect() -> None:
    @dataclass
    class Outer:
        lowercase: bool = False
        prep: Preparation = field(default_factory=Preparation)

    with pytest.raises(TypeError, match="lowercase"):
        main(Outer, print, prog="", description="", argv=[])


PAGE = """\
usage: prepare [OPTIONS]

Prepare. Defaults stand in brackets.

the text:
 --corpus TEXT ...  Files and folders
                    with text.
 --text-column TEXT
                    Column that holds
                    the text.

options:
 --vocab-size N     Entries of the
                    vocabulary, a
                    multiple of 64, or
                    auto. [auto]
 --[no-]lowercase   Lower-case the text.
                    [yes]

every command:
 --config PATH      YAML file with
                    settings; it is read
                    first, so the
                    options given here
                    win.
 --print-config     Print all settings
                    as YAML, in the form
                    that --config reads,
                    and stop.

examples:
  prepare
"""


def test_the_help_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(Preparation, "groups", {"the text": ("corpus", "text_column")}, raising=False)
    argv = ["--corpus", "x", "-h"]
    assert main(Preparation, print, prog="prepare", description="Prepare.", examples="prepare\n", argv=argv) == 0
    assert capsys.readouterr().out == PAGE


SHOWING = """
from dataclasses import dataclass

from data_prep.console.command_line import main


@dataclass
class Shown:
    out: str = ""


main(Shown, lambda given: print("값", given.out), prog="shows", description="What it does.")
"""
SCRIPT = """
import sys
from dataclasses import dataclass
from data_prep.console.command_line import main
@dataclass(frozen=True)
class Small:
    steps: int = 5
    '''Training steps to take.'''
code = main(Small, print, prog="small", description="What it does.", examples="  small --steps 3")
assert not {"torch", "datasets", "transformers", "numpy"} & set(sys.modules), "a slow import"
sys.exit(code)
"""


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("--stops", 2)])
def test_help_and_mistakes_answer_without_loading_what_computes(tmp_path: Path, argument: str, code: int) -> None:
    (tmp_path / "small.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-X", "importtime", tmp_path / "small.py", argument],
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
    )
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    said = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("import time:"))
    assert done.returncode == code
    assert "dataclasses" in imported
    assert not {"torch", "numpy", "datasets", "pyarrow", "transformers", "yaml"} & imported
    assert "\x1b" not in done.stdout + said
    if code == 0:
        for part in ("What it does.", "--steps N", "Training steps to take. [5]", "--config"):
            assert part in done.stdout
        assert done.stdout.endswith("examples:\n  small --steps 3\n")
        assert max(map(len, done.stdout.splitlines()[1:])) <= 80  # a terminal wraps the usage line
    else:
        assert said == "error: unknown option --stops: did you mean --steps? (see --help)\n"


def test_letters_that_a_terminal_lacks_are_spelled_out(tmp_path: Path) -> None:
    """Of a text, and of the name of a file, which may be no text."""
    (tmp_path / "shows.py").write_text(SHOWING)
    done = subprocess.run(
        [sys.executable, tmp_path / "shows.py", b"--out=caf\xe9"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert done.stdout == b"\\uac12 caf\\udce9\n"


@pytest.mark.parametrize("argument", ["--help", "--print-config"])
def test_output_that_nobody_reads_on_ends_without_a_word(tmp_path: Path, argument: str) -> None:
    (tmp_path / "small.py").write_text(SCRIPT)
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, tmp_path / "small.py", argument],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("started", "said"),
    [
        ({}, "Resume with\n  python -m pretrain.run --out 'my run'"),
        (
            {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"},
            "Resume with\n  torchrun --nproc-per-node 4 -m pretrain.run --out 'my run'",
        ),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "Start the same 16 processes again to resume."),
        ({"WORLD_SIZE": "2"}, "Start the same 2 processes again to resume."),
    ],
)
def test_what_is_said_to_go_on_is_what_was_started(started, said, monkeypatch):
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in started.items():
        monkeypatch.setenv(name, value)
    assert again("python -m pretrain.run", ["--out", "my run"]) == said
    of_script = said.replace("python -m pretrain.run", "domain-bert-pretrain")
    of_script = of_script.replace("-m pretrain.run", "--no-python domain-bert-pretrain")
    assert again("domain-bert-pretrain", ["--out", "my run"]) == of_script
