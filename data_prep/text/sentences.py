"""Lines into sentences: lines that were cut at a margin are joined, and lines that are paragraphs are split."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise

from ..errors import PrepError

LONGEST_LINE = 10_000
"""Characters. sentencex takes time that grows with the square of the length of a text without spaces (minutes
for a megabyte of Chinese), so a longer line is first cut by the plain rule, into blocks of half as many; a longer word
in them has no ends, and its block is left whole."""

LONGEST_PIECE = 1000
"""Characters. A longer piece is split again by the plain rule: an unclosed quote hides all ends after it."""

# sentencex takes any string for a language and falls back to English without a word, so a typing mistake has
# to be caught here: the codes of ISO 639-1, and the longer ones for which sentencex knows a related language.
LANGUAGES = frozenset(
    """
    aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu cv cy da de dv
    dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi ho hr ht hu hy hz ia id ie ig
    ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh
    mi mk ml mn mo mr ms mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro
    ru rw sa sc sd se sg sh si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw
    ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu abs ace ady aeb aln alt ami anp arn arq ary arz ast
    atj avk awa azb ban bar bbc bcc bgn bho bjn bpy bqi btm bug bxr cdo ckb crh csb dsb dtp dty egl eml
    ext fit frc frp frr fur gag gan gcr glk gom gor gsw guc hak hif hrx hsb hyw inh jam jut kaa kab kbd
    kbp khw kiu kjp koi krc krl ksh kum lad lbe lez lij liv lki lld lmo lrc ltg luz lzh lzz mad mai mdf
    mhr min mnw mrj mwl myv mzn nah nan nap nds nia nrm olo pcd pdc pdt pfl pih pms pnb pnt qug rgn rmy
    rue rup ruq sah scn sco sdc sdh ses sgs shi shy skr sli smn srn stq sty szl szy tay tcy tet trv tyv
    udm vec vep vls vmf vot vro wuu xal xmf zea zgh
    """.split()
)

# An end mark, then closing quotes and brackets; _plain_split looks at what follows. Scripts written without
# spaces end a sentence with the mark alone.
_END = re.compile(r"""(?:[.!?…‽؟۔।॥።။។։]["'”’»)\]]*(?=\s)|([。！？｡．])["'”’』」｣）]*)\s*""")
_OPENING = "\"'“‘«([¿¡„「『｢（"
# Around a place where a sentence of Japanese or Chinese does not end: before a closing bracket, behind a quotation that
# goes on (「…。」と言った), and at the full stop of a number (３．１４), of an item of a list (１．はじめに), or of
# an initial.
_NO_END = re.compile(
    r"""\n[」』｣）〉》】〕]
    | [。！？｡．…][」』｣]\s*\n(?:と|って|[、，､])
    | [0-9０-９]．\n[0-9０-９]
    | (?:^|[。！？｡\s]|(?<![0-9０-９])．)[0-9０-９]+．\s*\n
    | (?<![A-Za-zＡ-Ｚａ-ｚ])[A-ZＡ-Ｚ]．\n""",
    re.VERBOSE,
)
# All of these places have one of them.
_IN_QUESTION = re.compile("[」』｣）〉》】〕．]")
_LOOK_BACK = 8


def split(lines: list[str], language: str = "en", rule: str = "sentence") -> list[str]:
    """Sentences of one document, in order.

    Args:
        lines: non-empty lines of the document.
        language: a code that `check_language` accepts ("de", "de-AT", "DE"); chooses the abbreviations.
        rule: "sentence" (every line is one already), "paragraph" or "wrapped" (lines are split further).

    Returns:
        Non-empty pieces without white space at their ends. Where lines are split each run of white space inside
        becomes one space; no other character is changed, lost or added.

    Raises:
        PrepError: the language is not known.
    """
    if rule == "sentence":
        return lines
    from sentencex import segment

    code = check_language(language)
    sentences = []
    for line in lines:
        # sentencex panics, past any `except Exception`, where white space of several bytes (a no-break space)
        # stands between a capital letter and a full stop: it may only see plain spaces.
        text = " ".join(line.split())
        blocks = [text] if len(text) <= LONGEST_LINE else _plain_split(text, LONGEST_LINE // 2)
        for block in blocks:
            has_ends = len(block) <= LONGEST_LINE or max(map(len, block.split())) <= LONGEST_LINE
            pieces = segment(code, block) if has_ends else [block]
            for piece in map(str.strip, _rejoined(pieces) if _IN_QUESTION.search(block) else pieces):
                if len(piece) > LONGEST_PIECE:
                    sentences += _plain_split(piece)
                elif piece:
                    sentences.append(piece)
    return sentences


def _rejoined(pieces: list[str]) -> Iterator[str]:
    """The pieces of a text, one with the next where no sentence ends between them."""
    held = ""
    for piece in pieces:
        if held and not _NO_END.search(f"{held[-_LOOK_BACK:]}\n{piece[:2]}"):
            yield held
            held = ""
        held += piece
    yield held


@cache
def check_language(code: str) -> str:
    """The code as the splitter wants it: lower case, without a region ("de-AT" and "DE" give "de").

    Raises:
        PrepError: there is no such language; the message names the nearest codes.
    """
    primary = code.strip().lower().replace("_", "-").split("-")[0]
    if primary in LANGUAGES:
        return primary
    # The first letters come first: most mistakes are a language's name or its three-letter code.
    near = [primary[:2], *difflib.get_close_matches(primary, sorted(LANGUAGES), n=2)]
    near = ", ".join(dict.fromkeys(name for name in near if name in LANGUAGES)) or "en, de, zh"
    raise PrepError(f'"{code}" is not a language code; pass --language with an ISO 639 code such as {near}.')


def _plain_split(text: str, shortest: int = 1) -> Iterator[str]:
    """Cuts after an end mark where a letter follows that is not lower-case, but no piece under `shortest`.

    Behind the marks of Chinese and Japanese a number may follow too.
    """
    start = 0
    for match in _END.finditer(text):
        if match.end() - start < shortest:
            continue
        end = match.end()
        following = text[end : end + 8].lstrip(_OPENING)[:1]
        is_start = following.isalnum() if match[1] else following.isalpha()
        before = text[max(start, end - _LOOK_BACK) : end]
        goes_on = match[1] and _NO_END.search(f"{before}\n{text[end : end + 2]}")
        if is_start and not following.islower() and not goes_on:
            yield text[start:end].rstrip()
            start = end
    if start < len(text):
        yield text[start:]


WRAPPED_SHARE = 0.5
"""Lines are wrapped if this share of a sample is full: the next word would not have fitted before the margin."""

_MARGINS = range(30, 200)
"""Columns of a line that was cut by a program."""

# Of the margin: letters of a printed page, as PDF has it, are not equally wide.
_SLACK = 0.1
_LEAST_BREAKS = 10
_SAMPLED_BREAKS = 5000
_LONGEST_FIRST_WORD = 20
# Chinese and Japanese, written without spaces: each character is a word here, and two columns wide.
_WIDE = "\u2e80-\u303f\u3041-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60"
_IS_WIDE = re.compile(f"[{_WIDE}]")
_WORD = re.compile(f"[{_WIDE}]|[^\\s{_WIDE}]+")
_SENTENCE_END = re.compile(r"""[.!?…‽؟۔।॥።။។։。！？｡．]["'”’»)\]」』｣）]*$""")
# Thai and Lao have no mark at the end of a sentence.
_WITHOUT_MARKS = re.compile("[\u0e00-\u0eff]")
# How much the beginnings of lines may differ from those of words within lines (total variation, 0 to 1).
_MOST_DIFFERENCE = 0.3
# Sentences end in at least this share of the lines: in few of the full ones, and not much less often than by chance.
_LEAST_WITH_ENDS, _MOST_ENDS, _LEAST_OF_CHANCE = 0.05, 0.3, 0.3
# Of full lines that have the same length more were cut without regard to words.
_MOST_EQUAL = 0.5

_LETTERS = r"[^\W\d_]+"
_COMPOUND = re.compile(f"{_LETTERS}(?:[-‐]{_LETTERS})*")
# With a hyphen at the end of a line: a word that was broken there, or one that has it anyway.
# From the beginning of a run of letters on, else long runs take quadratic time.
_BROKEN = re.compile(f"(?<![^\\W\\d_])({_LETTERS})([-‐])\n({_LETTERS})")
_BLANK_LINES = re.compile("\n{2,}")
_BREAK_WITHOUT_SPACE = re.compile(f"(?<=\\w[-‐])\n(?=\\w)|(?<=[{_WIDE}])\n(?=[{_WIDE}])|\u00ad\n")


def unwrapped(lines: list[str]) -> list[str]:
    """The paragraphs of a document that was cut at a margin: what stands between blank lines, on one line each.

    There is no space between characters of Chinese and Japanese, nor behind a hyphen. A soft hyphen (U+00AD) at the end
    of a line goes; any other goes where the document has the word more often without it. A word that stands nowhere
    else follows most of those that do, unless it begins or ends with a word of the document; then its hyphen stays.
    """
    text = "\n".join(lines).strip("\n")
    text = _without_hyphens(text) if _BROKEN.search(text) else text
    return [_BREAK_WITHOUT_SPACE.sub("", part).replace("\n", " ") for part in _BLANK_LINES.split(text) if part]


def _without_hyphens(text: str) -> str:
    known = Counter(word.casefold() for word in _COMPOUND.findall(_BROKEN.sub(" ", text)))

    def surplus(broken: re.Match) -> int:
        """How many times more often the word stands without its hyphen than with it."""
        first, last = broken[1].casefold(), broken[3].casefold()
        return known[first + last] - known[f"{first}-{last}"]

    found = [surplus(word) for word in _BROKEN.finditer(text)]
    are_broken = sum(times > 0 for times in found) > sum(times < 0 for times in found)

    def joined(broken: re.Match) -> str:
        first, hyphen, last = broken.groups()
        is_new = not (known[first.casefold()] or known[last.casefold()] or last[0].isupper())
        if surplus(broken) > 0 or (surplus(broken) == 0 and are_broken and is_new):
            hyphen = ""
        return first + hyphen + last

    return _BROKEN.sub(joined, text)


class LineBreaks:
    """What the breaks between lines show, added up over the sources of a sample.

    A text is cut at a margin wherever its words reach it: lines begin as words within lines do, and few of those that
    are full end a sentence. Sentences, verses and records that have a line each are seldom full, begin otherwise, and
    end a sentence always or never. Nothing here needs a script with capital letters.
    """

    def __init__(self):
        self.breaks = self.full = 0
        self._equal = self._justified = 0
        self._full_sentence_ends = self._lines_with_ends = self._without_marks = 0
        self._words_within = self._ends_within = 0
        self._first: Counter[str] = Counter()
        self._within: Counter[str] = Counter()

    def add(self, texts: Iterable[list[str]]) -> None:
        """Count the breaks between lines that follow each other in texts of one source, blank lines included."""
        pairs = [pair for lines in texts for pair in pairwise([*lines, ""]) if pair[0]]
        pairs = pairs[:: -(-len(pairs) // _SAMPLED_BREAKS) or 1]
        self._lines_with_ends += sum(_ends_sentence(line) for line, following in pairs if not following)
        pairs = [pair for pair in pairs if pair[1]]
        self.breaks += len(pairs)
        # Chinese is cut by columns or by characters.
        measure = max((len, _width), key=lambda measure: sum(_are_full(pairs, measure)))
        equal: Counter[int] = Counter()
        for (line, following), is_full in zip(pairs, _are_full(pairs, measure), strict=True):
            if is_full:
                self._add(line, following)
                equal[measure(line)] += not _IS_WIDE.match(following)
            else:
                self._lines_with_ends += _ends_sentence(line)
        self._equal += max(equal.values(), default=0)

    def _add(self, line: str, following: str) -> None:
        words, first = _WORD.findall(line), _WORD.search(following)[0]
        ends = sum(map(_ends_sentence, words[:-1]))
        self.full += 1
        self._justified += "  " in line
        self._full_sentence_ends += _ends_sentence(line)
        self._lines_with_ends += ends > 0
        self._without_marks += _WITHOUT_MARKS.search(line) is not None
        self._words_within += len(words) - 1
        self._ends_within += ends
        self._first[_kind(first)] += 1
        self._within.update(map(_kind, words[1:]))

    @property
    def is_wrapped(self) -> bool:
        """Whether the lines were cut at a margin."""
        if self.breaks < _LEAST_BREAKS or self.full < WRAPPED_SHARE * self.breaks:
            return False
        if self._equal > _MOST_EQUAL * self.full and not self._justified:
            return False
        return self._begin_like_words() and (self._without_marks > self.full / 2 or self._end_like_words())

    def _begin_like_words(self) -> bool:
        first, within = self._first.total(), max(1, self._within.total())
        kinds = self._first.keys() | self._within.keys()
        difference = sum(abs(self._first[kind] / first - self._within[kind] / within) for kind in kinds) / 2
        return difference <= _MOST_DIFFERENCE

    def _end_like_words(self) -> bool:
        expected = self.full * self._ends_within / max(1, self._words_within)
        found = self._full_sentence_ends
        has_sentences = self._lines_with_ends >= _LEAST_WITH_ENDS * self.breaks
        return has_sentences and _LEAST_OF_CHANCE * expected - 3 <= found <= _MOST_ENDS * self.full


def _are_full(pairs: list[tuple[str, str]], measure: Callable[[str], int]) -> list[bool]:
    """Of each line whether the first word of the following one would have gone over the margin."""
    lengths = [measure(line) for line, _ in pairs]
    # A link or a table may stand out of it.
    margin = sorted(lengths)[int(0.95 * len(lengths))] if lengths else 0
    if margin not in _MARGINS:
        return [False] * len(pairs)
    least = margin - _SLACK * margin
    first_words = (_WORD.search(following)[0] for _, following in pairs)
    return [length + _room(first, measure) >= least for length, first in zip(lengths, first_words, strict=True)]


def _room(word: str, measure: Callable[[str], int]) -> int:
    """What a word takes at the end of a line. A mark that may not begin a line takes the character before it along."""
    return 2 * measure(word) if _IS_WIDE.match(word) else min(measure(word), _LONGEST_FIRST_WORD)


def _ends_sentence(line: str) -> bool:
    return _SENTENCE_END.search(line[-8:]) is not None


def _kind(word: str) -> str:
    """What a word begins with."""
    letter = word[0]
    if letter.isalpha():
        return "lower" if letter.islower() else "upper" if letter.isupper() else "letter"
    return "number" if letter.isdigit() else "mark"


def _width(line: str) -> int:
    """Columns of a line on a screen."""
    return len(line) if line.isascii() else len(line) + len(_IS_WIDE.findall(line))
