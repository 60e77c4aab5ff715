"""A regression check for refactorings: what all stages write, as digests, to compare with those of another commit.

    python .ci/net.py before.json                          # at the commit to compare with
    python .ci/net.py after.json --against before.json     # after each move; exit code 1 where a file differs

Four corpora are prepared, each in a way of its own, pretrained on for 40 steps (float32 on one thread, and bf16 where
the machine has it), continued, fine-tuned with windows and with pairs, and predicted with. Every file that a stage
writes is compared: weights, tables, vocabularies and pictures by their bytes, JSON without times and machines. What
people read (the screen, logs, reports in Markdown, model cards) is compared too, without its numbers, but a difference
there is shown and no error: words may change. Three minutes on two cores.
"""

import argparse
import csv
import difflib
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Keys of JSON that differ from run to run: times, the machine, sizes and digests of files with these in them.
CHANGING = {"seconds", "saving_seconds", "tokens_per_second", "machines", "threads", "metrics_bytes", "files"}
WORDS = {".md", ".log", ".txt-screen"}
LETTERS = ("aeioulnrst", "áèîõüçñß", "かきくけこさしす", "가나다라마바사아", "中文書本學生大小")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="an earlier one to compare with")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to run (default: this one)")
    parser.add_argument("--keep", type=Path, help="folder to leave all files in")
    given = parser.parse_args()
    work = given.keep or Path(tempfile.mkdtemp(prefix="net-"))
    work.mkdir(parents=True, exist_ok=True)
    try:
        found = catch(given.tree.resolve(), work.resolve())
    finally:
        if not given.keep:
            shutil.rmtree(work)
    given.out.write_text(json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True), encoding="utf-8")
    print(f"{len(found['digests'])} files, {len(found['words'])} texts: {given.out}")
    return compare(json.loads(given.against.read_text(encoding="utf-8")), found) if given.against else 0


def compare(before: dict, after: dict) -> int:
    """Print what differs; 1 where a digest does."""
    for name in sorted(before["words"].keys() | after["words"].keys()):
        sides = [side["words"].get(name, "").splitlines() for side in (before, after)]
        for line in difflib.unified_diff(*sides, f"before/{name}", f"after/{name}", lineterm="", n=0):
            print(line)
    old, new = before["digests"], after["digests"]
    different = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    for name in different:
        print(f"{'differs' if name in old and name in new else 'gone' if name in old else 'new'}: {name}")
    print(f"{len(different)} of {len(old)} files differ")
    return 1 if different else 0


def catch(tree: Path, work: Path) -> dict[str, dict[str, str]]:
    """Run everything; `digests` of files and `words` of texts, by their names below `work`."""
    write_corpora(work)
    run = commands(tree, work)
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for done in [pool.submit(chain, run) for chain in (builtin, rows, scripts)]:
            done.result()
    found: dict[str, dict[str, str]] = {"digests": {}, "words": {}}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work).as_posix()
        if path.is_file() and not name.startswith("given/"):
            kind = "words" if path.suffix in WORDS else "digests"
            found[kind][name] = words_of(path) if kind == "words" else digest_of(path)
    return found


# --- the runs


def commands(tree: Path, work: Path) -> Callable[..., None]:
    """Runs a stage in `work` and keeps what it prints."""
    environment = os.environ | {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def run(name: str, module: str, *options: str, code: int = 0, given: str = "") -> None:
        done = subprocess.run(
            [sys.executable, "-m", module, *options],
            cwd=work, env=environment, input=given, capture_output=True, text=True, encoding="utf-8",
        )  # fmt: skip
        (work / f"{name}.txt-screen").write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode != code:
            raise SystemExit(f"{module} {' '.join(options)} ended with {done.returncode}:\n{done.stderr[-2000:]}")

    return run


def builtin(run: Callable[..., None]) -> None:
    """The commands of the README, for fewer steps."""
    small = ("--preset=tiny", "--log-every=5", "--evaluations=2", "--device=cpu")
    run("builtin", "pretrain.run", *small, "--budget=40steps", "--precision=fp32", "--out=builtin")
    run("builtin-fill-mask", "pretrain.fill_mask", "--model=builtin/final", "Returns the [MASK] of the array.")
    run("builtin-finetune", "finetune.run", "--model=builtin/final", "--budget=20steps", "--precision=fp32",
        "--out=builtin-packages")  # fmt: skip
    run("builtin-predict", "finetune.predict", "--model=builtin-packages/final",
        given="Draw a line through the points of a figure.\n")  # fmt: skip
    if "avx512_bf16" in _instructions():
        run("builtin-bf16", "pretrain.run", *small, "--prepared=builtin/prepared", "--budget=40steps",
            "--precision=bf16", "--out=builtin-bf16")  # fmt: skip
    for stage in ("data_prep.run", "pretrain.run", "finetune.run"):
        run(f"settings-{stage}", stage, "--print-config")


def rows(run: Callable[..., None]) -> None:
    """Rows of a table with groups, whole words masked, AdamW, a schedule that is extended; windows in fine-tuning."""
    run("rows-prepare", "data_prep.run", "--corpus=given/rows.jsonl.gz", "--text-column=body", "--group-column=case",
        "--sequence-length=64", "--masking=whole-word", "--static-masks=2", "--vocab-size=1024", "--min-documents=2",
        "--no-lowercase", "--workers=2", "--skip-bad-rows", "--out=rows/prepared")  # fmt: skip
    train = ("--prepared=rows/prepared", "--preset=tiny", "--optimizer=adamw", "--batch-size=16", "--dropout=0.1",
             "--schedule=warmup-stable-decay", "--evaluations=2", "--precision=fp32", "--device=cpu", "--log-every=1",
             "--sequence-length=64", "--masking=whole-word", "--micro-batch-tokens=500", "--out=rows/run")  # fmt: skip
    run("rows-pretrain", "pretrain.run", *train, "--budget=20steps")
    run("rows-extended", "pretrain.run", *train, "--budget=40steps")
    run("rows-refused", "pretrain.run", *train, "--budget=10steps", code=2)
    tune = ("--model=rows/run/final", "--train=given/labelled.csv", "--test=given/labelled-test.csv",
            "--precision=fp32", "--device=cpu")  # fmt: skip
    run("rows-windows", "finetune.run", *tune, "--text-column=text", "--label-column=label", "--group-column=case",
        "--long-text=windows", "--class-weights=balanced", "--hidden-layers=1", "--budget=40steps", "--seeds=2",
        "--batch-size=16", "--out=rows/windows")  # fmt: skip
    run("rows-predict", "finetune.predict", "--model=rows/windows/final", "--out=rows/predicted.csv",
        "given/labelled-test.csv")  # fmt: skip
    run("rows-compare", "finetune.run", *tune, "--text-column=text", "--label-column=label", "--budget=20steps",
        "--compare=scratch", "--learning-rate=5e-4", "--show-text=no", "--out=rows/compared")  # fmt: skip


def scripts(run: Callable[..., None]) -> None:
    """Text in several scripts; a model that is continued with a longer vocabulary; MLM alone; pairs in fine-tuning."""
    run("scripts-prepare", "data_prep.run", "--corpus=given/scripts", "--document=blank-line", "--line=sentence",
        "--exclude=*.bak.txt", "--vocab-size=512", "--strip-accents", "--workers=1", "--near-duplicates=drop",
        "--out=scripts/prepared")  # fmt: skip
    small = ("--evaluations=2", "--precision=fp32", "--device=cpu", "--batch-size=16")
    run("scripts-pretrain", "pretrain.run", *small, "--prepared=scripts/prepared", "--preset=tiny", "--objective=mlm",
        "--schedule=cosine", "--budget=40steps", "--out=scripts/run")  # fmt: skip
    run("scripts-continue", "pretrain.run", *small, "--corpus=given/topics", "--init-from=scripts/run/final",
        "--extend-vocab=64", "--objective=mlm+nsp", "--sequence-length=160", "--validation-corpus=given/held-out",
        "--budget=40steps", "--workers=1", "--out=scripts/continued")  # fmt: skip
    run("scripts-pairs", "finetune.run", "--model=scripts/continued/final", "--train=given/pairs.jsonl", *small[1:],
        "--optimizer=muon", "--budget=40steps", "--seeds=2", "--out=scripts/pairs")  # fmt: skip
    run("scripts-predict", "finetune.predict", "--model=scripts/pairs/final", "--out=scripts/predicted.jsonl",
        "given/pairs.jsonl")  # fmt: skip


def _instructions() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8") if path.exists() else ""


# --- what is read


def write_corpora(work: Path) -> None:
    """Python's language reference in several forms, letters of several scripts, and labelled rows of both."""
    from pydoc_data.topics import topics

    texts = [text for _, text in sorted(topics.items())]
    rng = random.Random(7)
    given = work / "given"
    for folder in ("topics", "held-out", "scripts"):
        (given / folder).mkdir(parents=True, exist_ok=True)
    for number, text in enumerate(texts):
        (given / ("held-out" if number % 9 == 0 else "topics") / f"{number}.txt").write_text(text, encoding="utf-8")
    with gzip.GzipFile(given / "rows.jsonl.gz", "wb", mtime=0) as file:
        for number, text in enumerate(texts):
            row = {"id": number, "body": text if number % 50 else None, "case": f"case {number // 3}"}
            file.write(json.dumps(row).encode() + b"\n")
    for number in range(6):
        documents = ["\n".join(line(rng) for _ in range(12)) for _ in range(25)]
        documents += documents[:2]
        name = f"{number}.bak.txt" if number == 5 else f"{number}.txt"
        (given / "scripts" / name).write_text("\n\n".join(documents), encoding="utf-8")
    sentences = [text for text in re.split(r"(?<=[.:])\s+", " ".join(texts)) if 30 < len(text)]
    for name, part in (("labelled", sentences[:300]), ("labelled-test", sentences[300:400])):
        with open(given / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "text", "label", "case"])
            for number, text in enumerate(part):
                label = "code" if "object" in text else "long" if len(text) > 120 else "other"
                writer.writerow([number, text * (1 + number % 7), label, number // 4])
    with open(given / "pairs.jsonl", "w", encoding="utf-8") as file:
        for number, (first, second) in enumerate(zip(sentences[400:700:2], sentences[401:700:2], strict=True)):
            other = second if number % 2 else sentences[rng.randrange(800, len(sentences))]
            row = {"premise": first, "hypothesis": other, "label": number % 2}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def line(rng: random.Random) -> str:
    """A sentence of made-up words, each in letters of one script."""
    words = []
    for _ in range(rng.randint(4, 14)):
        words.append("".join(rng.choices(rng.choice(LETTERS), k=rng.randint(1, 6))))
    return " ".join(words).capitalize() + rng.choice(".。!?")


# --- what is compared


def digest_of(path: Path) -> str:
    """Of a file's bytes; of JSON without what changes from run to run; of a manifest of such files nothing."""
    if path.name == "manifest.json":
        content = b""
    elif path.suffix in (".json", ".jsonl"):
        lines = [path.read_text(encoding="utf-8")] if path.suffix == ".json" else path.read_text("utf-8").splitlines()
        content = "\n".join(json.dumps(lasting(json.loads(text)), sort_keys=True) for text in lines).encode()
    else:
        content = path.read_bytes()
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def lasting(value: object) -> object:
    """JSON without the keys that change from run to run."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in CHANGING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def words_of(path: Path) -> str:
    """A text without its numbers."""
    return "\n".join(plain(path.read_text(encoding="utf-8").replace("\r", "\n")))


def plain(text: str) -> Iterator[str]:
    """Its lines without numbers; none of a progress bar, and no warning of a busy machine."""
    for row in text.split("\n"):
        if not any(part in row for part in ("%|", " tokens/s", "processes want the")):
            yield re.sub(r"[\d.,:]*\d", "#", re.sub(r"\d+ (min|h) ", "", row)).strip()


if __name__ == "__main__":
    sys.exit(main())
