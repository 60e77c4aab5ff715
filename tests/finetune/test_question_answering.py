"""Questions and answers: learning, prediction in all forms, transformers beside it, and what is refused."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from finetune import predict as predicting
from finetune.batches import BatchMaker
from finetune.choose import main as choose
from finetune.predict import main as predict
from finetune.predictor import Ensemble, Predictor
from finetune.questions.answer_baselines import first_sentence, most_alike
from finetune.questions.best_answers import best
from finetune.questions.contexts import encode_questions
from finetune.rows import Example
from finetune.run import main
from finetune.settings import FinetuneError
from finetune.tasks import HeldOut
from finetune.tasks.question_answering import QuestionAnswering, SpanObjective
from model import BertConfig, BertForQuestionAnswering
from pretrain.engine.checkpoint import save_model_folder

OPTIONS = ["--learning-rate=3e-3", "--dropout=0", "--device=cpu", "--precision=fp32", "--threads=1", "--batch-size=8"]


def paragraph(rng: random.Random, has_answer: bool) -> tuple[str, list[dict]]:
    """Words in which a heart, with or without its rate, is what is asked for; some are longer than the model reads."""
    words = rng.choices(["the", "patient", "was", "stable", "of"], k=rng.choice([6, 10, 50]))
    if not has_answer:
        return " ".join(words), []
    answer, place = rng.choice(["heart", "heart rate"]), rng.randrange(len(words))
    before = "".join(f"{word} " for word in words[:place])
    return f"{before}{answer} {' '.join(words[place:])}", [{"text": answer, "answer_start": len(before)}]


def nested(rng: random.Random, count: int, unanswerable: bool = True) -> dict:
    """SQuAD's form; a question in three has no answer."""
    articles = []
    for number in range(count):
        context, answers = paragraph(rng, not unanswerable or number % 3 > 0)
        asked = {"id": f"q{number}", "question": f"what was stable {number} ?", "answers": answers}
        asked |= {"is_impossible": not answers} if unanswerable else {}
        articles.append({"title": f"t{number}", "paragraphs": [{"context": context, "qas": [asked]}]})
    return {"version": "v2.0", "data": articles}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    rng, folder = random.Random(1), tmp_path_factory.mktemp("rows")
    for name, count in (("train", 240), ("test", 60)):
        (folder / f"{name}.json").write_text(json.dumps(nested(rng, count)))
    return str(folder / "train.json"), str(folder / "test.json")


@pytest.fixture(scope="module")
def finished(encoder, files, tmp_path_factory, one_thread) -> Path:
    out = tmp_path_factory.mktemp("answers") / "run"
    given = [f"--model={encoder}", f"--train={files[0]}", f"--test={files[1]}", f"--out={out}", "--budget=4epochs"]
    assert main([*given, *OPTIONS, "--seeds=2", "--evaluations=2"]) == 0
    return out


def flat(path):
    """(question, context, answer) of a nested file."""
    return [
        (asked["question"], paragraph["context"], (asked["answers"] or [{"text": ""}])[0]["text"])
        for article in json.loads(Path(path).read_text())["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def test_it_learns_and_the_folder_knows_its_task(finished, files):
    results = json.loads((finished / "results.json").read_text())
    scores = {name: found["mean"] for name, found in results["test"].items()}
    assert scores["f1"] > 0.9 and scores["unanswerable_f1"] > 0.9 and scores["answerable_exact_match"] > 0.85
    assert results["chosen_by"] == "f1" and results["unanswerable"]["test"] == 20
    assert set(results["baselines"]) == {"sentence most like the question", "first sentence", "no answer"}
    assert results["baselines"]["no answer"]["test"]["f1"]["mean"] == pytest.approx(1 / 3)
    facts = json.loads((finished / "final" / "finetune.json").read_text())
    assert facts["task"] == "question-answering" and facts["text_columns"] == ["question", "context"]
    assert facts["decision"] == {"null_threshold": results["null_threshold"]}
    rows = flat(files[1])
    found = Predictor(finished / "final").predict([pair[:2] for pair in rows])
    right = [given["predicted_answer"] == answer for given, (_, _, answer) in zip(found, rows, strict=True)]
    best = results["test"]["exact_match"]["seeds"][results["best_seed"] - 1]
    assert np.mean(right) == pytest.approx(best)
    for given, (_, context, _) in zip(found, rows, strict=True):
        chances = [each["probability"] for each in given["predicted_answers"]]
        assert chances == sorted(chances, reverse=True) and len(chances) <= 20 and sum(chances) <= 1 + 1e-4
        assert all(context[each["start"] : each["end"]] == each["text"] for each in given["predicted_answers"])
        assert bool(given["predicted_answer"]) == (given["null_score"] <= facts["decision"]["null_threshold"])
    assert "gold" in (finished / "mistakes.md").read_text() or results["test"]["exact_match"]["mean"] == 1


def test_transformers_gives_the_same_logits_and_the_card_the_same_answers(finished, files, capsys):
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    folder = finished / "final"
    theirs, tokenizer = (
        AutoModelForQuestionAnswering.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    predictor = Predictor(folder, "cpu")
    rows = [row for row in flat(files[1]) if len(row[1].split()) < 15]
    encoded = encode_questions([Example("", *row[:2]) for row in rows], predictor.tokenizer, 48)
    for text, (question, context, _) in enumerate(rows):
        batch = BatchMaker(encoded, predictor.tokenizer, 1).packed(np.array([text]))
        given = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets = given.pop("offset_mapping")[0]
        assert given["input_ids"][0].tolist() == batch.input_ids.tolist()
        at = int(encoded.sequences.b_start[text])
        assert offsets[batch.places[1:]].tolist() == encoded.characters[at : at + len(batch.places) - 1].tolist()
        with torch.no_grad():
            found, ours = theirs(**given), predictor.model.logits_at(batch, batch.places)
        logits = torch.stack([found.start_logits[0], found.end_logits[0]], dim=1)[batch.places]
        torch.testing.assert_close(ours, logits, rtol=1e-4, atol=1e-4)
    card = (folder / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].replace("path/to/this/folder", str(folder))
    question, context, answer = next(row for row in rows if row[2])
    old = 'question, context = "Who was admitted?", "A patient was admitted."'
    assert old in code
    exec(code.replace(old, f"question, context = {question!r}, {context!r}"), {})
    (given,) = predictor.predict([(question, context)])
    assert capsys.readouterr().out.strip() == given["predicted_answers"][0]["text"]
    assert "unanswerable right" in card and "No answer is given where" in card


@pytest.fixture(scope="module")
def small(small_tokenizer, tmp_path_factory) -> Path:
    """A model that learned nothing."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=small_tokenizer.vocab_size, max_position_embeddings=32, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, initializer_range=0.3,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("small")
    save_model_folder(BertForQuestionAnswering(config), small_tokenizer, folder)
    return folder


def test_the_loss_is_that_of_the_model_over_the_places_of_each_window(small, small_tokenizer):
    model = BertForQuestionAnswering.from_pretrained(small)
    context = " ".join(["the heart rate was stable"] * 12)
    rows = [Example("1", "the rate ?", context, ((4, 14),)), Example("2", "was it", context[:30], ((4, 9),)),
            Example("3", "was it", context[:40], ())]  # fmt: skip
    encoded = encode_questions(rows, small_tokenizer, 32)
    maker = BatchMaker(encoded, small_tokenizer, 10_000)
    expected = torch.zeros(())
    counts = np.bincount(encoded.text)
    assert counts[0] > 2 and counts[1:].tolist() == [1, 1]
    for sequence, text in enumerate(encoded.text):
        batch = maker.packed(np.array([sequence]))
        whole = model(input_ids=batch.input_ids[None], token_type_ids=batch.token_type_ids[None])
        for logits, target in zip((whole.start_logits, whole.end_logits), batch.labels.T, strict=True):
            loss = F.cross_entropy(logits[0, batch.places], target.argmax())
            expected = expected + loss / 2 / counts[text]
    (batch,) = maker.micro_batches(np.arange(3))
    objective = SpanObjective()
    assert objective.counts(batch) == {"label": pytest.approx(3)}
    (loss,) = objective.loss_sums(model, batch).values()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    parameters = list(model.parameters())
    for ours, whole in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, whole, rtol=1e-3, atol=1e-5)
    empty = maker.empty_batch()
    assert objective.counts(empty) == {"label": 0} and objective.loss_sums(model, empty)["label"].item() == 0


def test_a_folder_of_transformers_always_answers(small, tmp_path):
    rows = tmp_path / "rows.txt"
    rows.write_text("which rate ?\tthe heart rate was stable\nwhat ?\tthe patient\n")
    out = tmp_path / "out.jsonl"
    assert predict([str(rows), f"--model={small}", f"--out={out}", "--device=cpu"]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    for row in found:
        assert row["text_pair"][row["predicted_start"] : row["predicted_end"]] == row["predicted_answer"] != ""
        chances = [each["probability"] for each in row["predicted_answers"]]
        assert "null_score" not in row and sum(chances) == pytest.approx(1, abs=1e-4)
    predictor = Predictor(small)
    with pytest.raises(FinetuneError, match="a single text"):
        predictor.predict(["the heart rate was stable"])
    assert isinstance(predictor.task, QuestionAnswering)


def test_predictions_are_jsonl_columns_and_what_the_official_script_reads(finished, files, tmp_path, capsys):
    def written(name, *options, file=files[1]):
        out = tmp_path / name
        assert predict([file, f"--model={finished / 'final'}", f"--out={out}", "--device=cpu", *options]) == 0
        return out.read_text()

    rows = [json.loads(line) for line in written("out.jsonl").splitlines()]
    # Whatever the rows had stays, gold answers too.
    assert [row["id"] for row in rows] == [f"q{number}" for number in range(60)] and rows[1]["answers"]
    squad = json.loads(written("out.json", "--format=squad"))
    assert squad == {row["id"]: row["predicted_answer"] for row in rows}
    table = list(csv.DictReader(written("out.csv").splitlines()))
    assert [row["predicted_answer"] for row in table] == list(squad.values())
    assert "predicted_answers" not in table[0] and {row["predicted_start"] for row in table} >= {""}
    # Files without answers, and their places where they are bad.
    unlabelled = json.loads(Path(files[1]).read_text())
    for article in unlabelled["data"]:
        for asked in article["paragraphs"][0]["qas"]:
            asked.pop("answers"), asked.pop("is_impossible")
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(unlabelled))
    again = [json.loads(line) for line in written("bare.jsonl", file=str(bare)).splitlines()]
    assert [row["predicted_answer"] for row in again] == list(squad.values())
    unlabelled["data"][7]["paragraphs"][0]["qas"][0]["question"] = " "
    bare.write_text(json.dumps(unlabelled))
    given = [str(bare), f"--model={finished / 'final'}", f"--out={tmp_path / 'x.jsonl'}", "--device=cpu"]
    assert predict(given) == 2 and 'bare.json:8.1.1 has an empty "question"' in capsys.readouterr().err
    assert predict([*given, "--skip-bad-rows"]) == 0
    assert json.loads((tmp_path / "x.jsonl").read_text().splitlines()[7])["predicted_answer"] is None
    nameless = tmp_path / "nameless.jsonl"
    nameless.write_text('{"question": "what ?", "context": "the heart"}\n')
    given = [str(nameless), f"--model={finished / 'final'}", "--device=cpu", "--format=squad"]
    assert predict(given) == 2 and 'nameless.jsonl:1 has no "id"' in capsys.readouterr().err
    nameless.write_text('{"id": 7, "question": "what ?", "context": "the heart"}\n' * 2)
    assert predict(given) == 2 and 'nameless.jsonl:2 has the same "id" as a row before' in capsys.readouterr().err


def test_an_id_is_known_again_after_an_interruption(finished, tmp_path, monkeypatch, capsys):
    rows = [{"id": str(n % 25), "question": "what ?", "context": f'the "heart" {n}'} for n in range(30)]
    file, out, outputs = tmp_path / "rows.jsonl", tmp_path / "out.json", Predictor.outputs
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 10)

    def interrupted(self, examples):
        if examples[0].text_pair.endswith("10"):
            raise KeyboardInterrupt
        return outputs(self, examples)

    given = [str(file), f"--model={finished / 'final'}", f"--out={out}", "--device=cpu", "--format=squad"]
    with monkeypatch.context() as patch:
        patch.setattr(Predictor, "outputs", interrupted)
        assert predict(given) == 130
    assert predict(given) == 2
    assert "going on after row 10" in (said := capsys.readouterr().err) and "rows.jsonl:26 has the same" in said
    assert not out.exists()


def test_seeds_answer_together_and_choose_what_to_label(finished, files, tmp_path):
    rows = [row[:2] for row in flat(files[1])]
    together = Ensemble(finished)
    each = [seed.predict(rows) for seed in together.seeds]
    for found, first, second in zip(together.predict(rows), *each, strict=True):
        chances = [
            {(a["start"], a["end"]): a["probability"] for a in row["predicted_answers"]} for row in (first, second)
        ]
        for answer in found["predicted_answers"]:
            span = answer["start"], answer["end"]
            expected = sum(chance.get(span, 0.0) for chance in chances) / 2
            # What is beyond the best twenty is left out.
            assert answer["probability"] == pytest.approx(expected, abs=0.02)
    results = json.loads((finished / "results.json").read_text())
    assert results["ensemble"]["test"]["f1"] > 0.9
    out = tmp_path / "chosen.jsonl"
    assert choose([files[1], f"--model={finished}", "--rows=5", f"--out={out}", "--device=cpu"]) == 0
    chosen = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(chosen) == 5 and all(row["uncertainty"] >= row["disagreement"] >= 0 for row in chosen)


def test_long_contexts_are_read_to_their_end(finished):
    context = "the patient was stable " * 200 + "heart rate " + "of the patient " * 100
    (found,) = Predictor(finished / "final").predict([("what was stable ?", context)])
    assert found["predicted_answer"] == "heart rate" and found["predicted_start"] == context.index("heart")


def test_a_context_beyond_what_places_can_name_is_refused(finished, monkeypatch):
    monkeypatch.setattr("finetune.tasks.question_answering.LONGEST_CONTEXT", 30)
    with pytest.raises(FinetuneError, match="text 2 has a context of 31 characters, and 30 are read at most"):
        Predictor(finished / "final").predict([("what ?", "x" * 30), ("what ?", "x" * 31)])


def test_what_is_cut_of_a_long_question_is_counted(finished, tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    asked = {"question": " ".join(["the"] * 30), "context": " ".join(["patient"] * 60)}
    rows.write_text(json.dumps(asked) + "\n")
    capsys.readouterr()
    assert predict([str(rows), f"--model={finished / 'final'}", f"--out={tmp_path / 'out.jsonl'}", "--device=cpu"]) == 0
    # Half of the 45 tokens beside [CLS] and two [SEP] are the question's.
    said = "1 rows, 1 longer than 48 tokens (read in windows; 8 tokens of questions or second texts were cut),"
    assert said in capsys.readouterr().err


def test_where_all_have_an_answer_one_is_always_given(encoder, tmp_path, one_thread, capsys):
    train, out = tmp_path / "train.json", tmp_path / "run"
    train.write_text(json.dumps(nested(random.Random(2), 90, unanswerable=False)))
    given = [f"--model={encoder}", f"--train={train}", f"--out={out}", "--budget=1steps", *OPTIONS, "--evaluations=1"]
    assert main([*given, "--show-text=no"]) == 0
    results = json.loads((out / "results.json").read_text())
    assert set(results["validation"]) == {"f1", "exact_match", "loss"} and results["null_threshold"] is None
    assert set(results["baselines"]) == {"sentence most like the question", "first sentence"}
    said = capsys.readouterr().out + (out / "mistakes.md").read_text()
    assert "characters" in (out / "mistakes.md").read_text() and "heart" not in said
    (found,) = Predictor(out / "final").predict([("what ?", "the patient")])
    assert found["predicted_answer"] in ("the", "patient", "the patient") and "null_score" not in found


@pytest.mark.slow
def test_all_ways_of_training_know_the_task(encoder, tmp_path, one_thread):
    rows = []
    for number, article in enumerate(nested(random.Random(3), 200)["data"]):
        (of_article,) = article["paragraphs"]
        row = {"context": of_article["context"], **of_article["qas"][0], "title": number // 5, "site": "ab"[number % 2]}
        rows.append(json.dumps(row) + "\n")
    train = tmp_path / "train.jsonl"
    train.write_text("".join(rows))
    given = [f"--model={encoder}", f"--train={train}", *OPTIONS, "--budget=3steps", "--evaluations=1"]
    for name, *options in (
        ("folds", "--folds=3", "--group-column=title", "--report-by=site"),
        ("curve", "--learning-curve"),
        ("compared", "--compare=scratch", f"--test={train}"),
    ):
        out = tmp_path / name
        assert main([*given, f"--out={out}", *options]) == 0, name
        assert json.loads((out / "results.json").read_text())
    doubtful = [json.loads(line) for line in (tmp_path / "folds" / "doubtful.jsonl").read_text().splitlines()]
    assert len(doubtful) == 20 and all(0 <= row["doubt"] <= 1 for row in doubtful)
    table = (tmp_path / "compared" / "comparison.md").read_text()
    assert "| no answer |" in table and "sentence most like the question" in table


def test_questions_of_one_kind_choose_no_threshold():
    """Questions that all have an answer do not tell from which score on none is given."""
    task, row = QuestionAnswering(0.0), Example("", "who", "An answer.", label=((0, 2),))
    for label in (((0, 2),), ()):
        rows = [Example("", "who", "An answer.", label=label)] * 3
        assert task.tuned(task.targets(rows), first_sentence(rows)).threshold == 0
    both = [row, Example("", "who", "An answer.", label=())]
    assert task.tuned(task.targets(both), first_sentence(both)).threshold != 0


@pytest.mark.parametrize(("without", "how"), [
    (0, "as none of the validation questions lack an answer"), (3, "as all of the validation questions"),
    (1, "chosen on the validation texts"),
])  # fmt: skip
def test_how_the_threshold_was_chosen_is_said(without, how, tmp_path):
    rows = [Example("", "who", "An answer.", label=())]
    results = {"unanswerable": {"validation": without, "test": 1}, "rows": {"validation": 3, "test": 1}}
    task = QuestionAnswering(0.0)
    shown = HeldOut("test", 1, rows, task.targets(rows), first_sentence(rows))
    assert how in task.tell(tmp_path, results, {}, shown, 1)[0]


def test_the_share_is_that_of_the_words_of_the_question():
    """The share is that of the question's words, however long a sentence is."""
    context = "The heart. On that day the heart of a patient was at rest, as was found and written down by two doctors."
    found = best(most_alike([Example("", "was the heart at rest", context)])[0])
    assert context[int(found.starts[0]) : int(found.ends[0])].startswith("On that day")
