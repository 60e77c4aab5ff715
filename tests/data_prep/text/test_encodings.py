"""`--encoding auto`: texts of offices in the encodings of their country."""

import gzip
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.errors import PrepError
from data_prep.preparation import prepare
from data_prep.settings import ExampleSettings, PrepSettings
from data_prep.text.corpus import Corpus
from data_prep.text.encodings import LEAST_CONFIDENCE, found_encoding

TEXTS = {
    "cp1252": "Die Ärztin prüft täglich größere Mengen. “Schön”, sagte die Müllerin – für 5 € natürlich überflüssig.",
    "cp1250": "Pacjent był leczony w szpitalu przez trzy tygodnie, ponieważ gorączka się utrzymywała. Źródło: własne.",
    "cp1251": "Пациент находился на лечении в больнице три недели, потому что температура не снижалась.",
    "cp1253": "Ο ασθενής νοσηλεύτηκε για τρεις εβδομάδες στο νοσοκομείο επειδή ο πυρετός επέμενε.",
    "cp1254": "Hasta üç hafta boyunca hastanede tedavi gördü, çünkü ateşi düşmedi ve ağrısı sürüyordu.",
    "cp1255": "החולה אושפז בבית החולים במשך שלושה שבועות משום שהחום לא ירד והכאבים נמשכו.",
    "cp1256": "تلقى المريض العلاج في المستشفى لمدة ثلاثة أسابيع لأن الحرارة لم تنخفض واستمرت الآلام.",
    "cp932": "患者は三週間入院して治療を受けた。熱が下がらず、痛みが続いたためである。ｶﾀｶﾅも使われた。",
    "gb18030": "患者在医院接受了三个星期的治疗，因为发烧没有退，疼痛仍在继续。医生说没有问题。",
    "cp949": "환자는 열이 내리지 않고 통증이 계속되어 삼 주 동안 병원에서 치료를 받았다. 의사는 괜찮다고 했다.",
}


@pytest.mark.parametrize("encoding", [*TEXTS, "utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("ending", ["txt", "txt.gz", "jsonl", "csv"])
def test_a_file_is_read_in_the_encoding_it_is_in(tmp_path, encoding, ending):
    text = TEXTS.get(encoding, TEXTS["cp1252"])
    content = {"jsonl": json.dumps({"text": text}, ensure_ascii=False), "csv": f'text\n"{text}"\n'}.get(ending, text)
    data = ("plain\n" * 5 * (ending == "txt") + content).encode(encoding)
    (tmp_path / f"a.{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    corpus = Corpus([str(tmp_path)], encoding="auto", text_column=None if "txt" in ending else "text")
    assert [line for document in corpus.documents() for line in document.lines][-1] == text


@pytest.mark.parametrize("encoding", ["cp1252", "cp932"])
def test_what_is_not_utf8_is_found_wherever_it_is_and_however_long_the_line(encoding):
    ascii, text = b"It rained on that day too.\n" * 150_000, TEXTS[encoding].encode(encoding)
    line = ascii.replace(b"\n", b" ")
    for data in (ascii + text, text + line, line + text, text * 5_000, line + text * 5_000):
        pieces = [data[start : start + 100_003] for start in range(0, len(data), 100_003)]
        found, confidence = found_encoding(lambda pieces=pieces: iter(pieces))
        assert confidence >= LEAST_CONFIDENCE and text.decode(found) == TEXTS[encoding]


# Beside the pages of Windows, which have some of these letters at other places.
OTHER_PAGES = {
    "iso8859-2": TEXTS["cp1250"] + " Sześćdziesiąt osób zgłosiło działania niepożądane, także ból żołądka.",
    "iso8859-5": TEXTS["cp1251"],
    "mac-cyrillic": TEXTS["cp1251"] + " Ъ, Я и другие буквы.",
    "iso8859-6": TEXTS["cp1256"],
    "iso8859-7": TEXTS["cp1253"] + " Άλλος ασθενής δεν είχε συμπτώματα.",
    "koi8-r": TEXTS["cp1251"],
}


@pytest.mark.parametrize("encoding", OTHER_PAGES)
@pytest.mark.parametrize("count", [1, 20])
def test_pages_of_other_systems_are_not_taken_for_those_of_windows(encoding, count):
    data = f"{OTHER_PAGES[encoding]}\n".encode(encoding) * count
    found, confidence = found_encoding(lambda: iter([data]))
    assert confidence >= LEAST_CONFIDENCE and data.decode(found) == data.decode(encoding)


def test_the_page_of_windows_stands_for_the_one_that_it_holds():
    """Marks of an office may stand behind the part that was looked at."""
    data = (TEXTS["cp1252"][:38] + "\n").encode("iso8859-1") * 3_000
    assert found_encoding(lambda: iter([data]))[0] == "cp1252"


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200), st.integers(1, 7))
def test_valid_utf8_is_utf8_however_it_is_cut(text, size):
    data = text.encode()
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert found_encoding(lambda: iter(pieces)) == ("utf-8", 1.0)


def test_the_choice_is_said_counted_and_part_of_what_was_prepared(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").mkdir()
    for number, encoding in enumerate(["utf-8", "cp1252", "utf-8", "cp1252"]):
        lines = [f"{TEXTS['cp1252']} {number} {line}." for line in range(60)]
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(lines), encoding=encoding)
    prep = PrepSettings(corpus=(str(tmp_path / "in"),), encoding="auto", vocab_size=128, workers=1)
    prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")
    assert re.search(r"Of 4 files 2 are read as cp1252: \S*/in/1\.txt, \S*/in/3\.txt\.", capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "prep_report.json").read_text())["corpus"]["encodings"] == {"cp1252": 2}
    assert "| files read as cp1252 | 2 |" in (tmp_path / "out" / "prep_report.md").read_text()
    # Found another time, by another version, it would be another text.
    monkeypatch.setattr("data_prep.text.corpus.encoding_of", lambda source, encoding: "cp1250")
    with pytest.raises(PrepError, match="the text is another"):
        prepare(prep, ExampleSettings(sequence_length=32), tmp_path / "out")


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"plain\ncaf\xe9\n", r"a\.txt is not UTF-8, and holds too little .*iconv -f .* leave the file out"),
        ("ä ö ü ß ".encode() * 50 + b"\n\xe9\n", r"a\.txt:2 is not valid utf-8 at byte 601 .*several encodings"),
        (b"PK\0\0\n", "looks like a binary file"),
    ],
)
def test_what_does_not_show_its_encoding_is_refused(tmp_path, data, refusal):
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(PrepError, match=refusal) as error:
        list(Corpus([str(tmp_path / "a.txt")], encoding="auto").documents())
    assert not re.search(r"\n", str(error.value))


@pytest.mark.parametrize("line", [
    "The patient’s heart rate was measured.",
    "He said “no” and left – the nurse noted “pain” at 5 °C.",
    "The patient was seen by Dr. José in the morning.",
    "It cost € 20, and the dose was 5 µg in 2 m².",
    "Die Größe war üblich, das Gewicht auch; alles andere wurde am nächsten Tag bestimmt.",
    "»Guten Morgen«, sagte Anna.",
    "Hun sagde: »Nej«.",
    "Il a attendu 3½ans.",
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 100])
def test_a_few_marks_of_an_office_are_cp1252(line, count):
    content = f"{line}\n".encode("cp1252") * count
    encoding, confidence = found_encoding(lambda: iter([content]))
    assert encoding == "cp1252" and confidence >= LEAST_CONFIDENCE


@pytest.mark.parametrize(("encoding", "line"), [
    ("cp1250", "Pacient byl ráno vyšetřen a cítil se lépe. Léčba bude pokračovat doma ještě jeden týden."),
    ("cp1250", "A beteget reggel megvizsgálták, és jobban érezte magát, erős fájdalom nélkül."),
    ("cp1250", "Pacientul a fost examinat dimineaţa şi s-a simţit mai bine."),
    ("cp1250", "Pacjent został zbadany rano i czuł się lepiej."),
    ("cp1254", "Hasta sabah muayene edildi ve kendini daha iyi hissetti. Işık şöyle."),
    ("cp1257", "Pacientas buvo apžiūrėtas ryte ir jautėsi geriau."),
    ("cp437", "Der Patient wurde morgens untersucht; Größe und Gewicht wären normal für übliche Fälle."),
    ("mac_roman", "The patient’s heart “rate” was measured – café."),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 30])
def test_other_encodings_are_not_taken_for_cp1252(encoding, line, count):
    """They are found, or refused."""
    content = f"{line}\n".encode(encoding) * count
    found, confidence = found_encoding(lambda: iter([content]))
    assert confidence < LEAST_CONFIDENCE or content.decode(found) == content.decode(encoding)
