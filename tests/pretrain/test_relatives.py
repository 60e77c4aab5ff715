"""BERT's relatives in one run with each other: trained, opened, asked for words, and continued with new entries."""

import json

import pytest
from safetensors.torch import load_file

from pretrain.fill_mask import main as fill_mask
from pretrain.run import main

SMALL = [
    "--preset=tiny", "--budget=2steps", "--batch-size=8", "--evaluations=1", "--sequence-length=32", "--device=cpu",
    "--precision=fp32", "--threads=1", "--workers=1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    ("--objective=mlm", "--packing=full-sentences"),
    ("--objective=mlm", "--packing=full-sentences", "--masking=whole-word"),
    ("--objective=mlm+sbo", "--masking=span"),
    ("--objective=mlm+sbo", "--masking=span", "--packing=full-sentences"),
    ("--objective=mlm+sop", "--masking=ngram"),
    ("--objective=electra", "--packing=full-sentences"),
    ("--objective=electra", "--masking=whole-word"),
    ("--objective=electra", "--masking=span"),
    ("--family=albert", "--objective=mlm+sop", "--masking=whole-word"),
    ("--family=albert", "--objective=mlm", "--packing=full-sentences"),
    ("--family=albert", "--objective=mlm+sbo", "--masking=span"),
], ids=" ".join)  # fmt: skip
def test_a_run_is_asked_and_continued(options, random_corpus, random_prepared, tmp_path, capsys):
    assert main([f"--prepared={random_prepared}", f"--out={tmp_path}/run", *SMALL[:-1], *options]) == 0
    assert fill_mask([f"--model={tmp_path}/run/final", "the heart [MASK] of a patient ."]) == 0
    more = tmp_path / "more.txt"
    more.write_text(random_corpus.read_text().replace("treatment", "electrocardiogram"))
    given = [option for option in (*SMALL, *options) if not option.startswith(("--family", "--preset"))]
    again = [f"--corpus={more}", f"--init-from={tmp_path}/run/final", "--extend-vocab=1", f"--out={tmp_path}/more"]
    capsys.readouterr()
    assert main([*again, *given]) == 0, capsys.readouterr().err
    configs = [json.loads((tmp_path / out / "final" / "config.json").read_text()) for out in ("run", "more")]
    assert configs[1] == configs[0] | {"vocab_size": configs[0]["vocab_size"] + 1}
    tensors = load_file(tmp_path / "more" / "final" / "model.safetensors")
    (words,) = (tensor for name, tensor in tensors.items() if name.endswith("word_embeddings.weight"))
    assert len(words) == configs[1]["vocab_size"]
    assert fill_mask([f"--model={tmp_path}/more/final", "the heart [MASK] of a patient ."]) == 0


@pytest.mark.slow
def test_a_student_learns_whole_words_in_full_sentences(random_corpus, random_prepared, tmp_path):
    assert main([f"--prepared={random_prepared}", f"--out={tmp_path}/teacher", *SMALL[:-1], "--objective=mlm"]) == 0
    given = [option for option in SMALL[:-1] if not option.startswith("--preset")]
    options = ["--objective=mlm", "--packing=full-sentences", "--masking=whole-word"]
    teacher = f"--teacher={tmp_path}/teacher/final"
    assert main([f"--prepared={random_prepared}", f"--out={tmp_path}/student", teacher, *options, *given]) == 0
    found = json.loads((tmp_path / "student" / "results.json").read_text())["validation"]
    assert found["soft_loss"] > 0 and found["cosine_loss"] > 0
