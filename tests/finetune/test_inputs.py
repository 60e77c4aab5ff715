"""What the commands that ask a model about texts look at before they open it."""

import pytest

from finetune import choose, embed, predict, search

ASKED = {
    "predict": (predict.main, ["a.txt"], "finetune.run"),
    "choose": (choose.main, ["a.txt"], "finetune.run"),
    "embed": (embed.main, ["a.txt"], "pretrain.run"),
    "search": (search.main, ["heart", "--texts=a.txt"], "pretrain.run"),
}


@pytest.mark.parametrize("command", ASKED)
def test_without_a_model_it_is_said_what_makes_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("heart\n")
    main, given, made_by = ASKED[command]
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: there is no runs/") and f"which python -m {made_by} makes: run that first" in said


@pytest.mark.parametrize("command", ASKED)
def test_an_encoding_and_a_file_that_are_not_there_are_said_first(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main, given, _ = ASKED[command]
    assert main([*given, "--encoding=utf-99"]) == 2 and "utf-99" in capsys.readouterr().err
    assert main(given) == 2 and "a.txt does not exist" in capsys.readouterr().err
