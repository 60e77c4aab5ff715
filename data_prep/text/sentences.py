"""Documents into sentences: the lines of a document, split further where they are paragraphs."""

import difflib
import re
from collections.abc import Iterator
from functools import cache

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
# sentencex does not know the full stop of Khmer.
_OTHER_END = "\u17d4"
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
                if len(piece) > LONGEST_PIECE or _OTHER_END in piece:
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
    raise PrepError(f'"{code}" is not a language code; pass --language with an ISO 639 code such as {near}')


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
