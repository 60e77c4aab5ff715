"""Tags of words and the entities that they mark: IOB1, IOB2, BIOES (BILOU, BMES), and plain names.

Inside, entities are written in IOB2: B-TYPE for the first word, I-TYPE for the others, O for words of none (Ramshaw and
Marcus 1995; Tjong Kim Sang and Veenstra 1999).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
# BILOU calls the last word L and a single one U; BMES calls the words between M.
_PREFIXED = re.compile(r"([BIMESLU])-(.+)", re.DOTALL)
_FIRST, _LAST = "BSU", "ESLU"
IOB1, IOB2, BIOES, IO, PLAIN = "IOB1", "IOB2", "BIOES", "IO", "names"
# Of a scheme with marks for the last word: those of the words between, of the last and of a single one.
_WITH_ENDS = {BIOES: "IES", "BILOU": "ILU", "BMES": "MES"}
UNTYPED = "entity"
"""The type of entities whose tags are B and I alone."""


class Entity(NamedTuple):
    """Words `start` to `end` (the first one after it) of a type."""

    start: int
    end: int
    type: str


def parts(tag: str) -> tuple[str, str]:
    """("B", "TYPE") of B-TYPE; ("", the tag) of one without a prefix."""
    match = _PREFIXED.fullmatch(tag)
    return (match[1], match[2]) if match else ("", tag)


def entities(tags: Sequence[str], strict: bool = False) -> list[Entity]:
    """The entities that the tags of a sentence mark, in order.

    Args:
        strict: an entity begins with B- only (IOB2). Otherwise as conlleval reads any of the schemes: an I- that
            continues nothing begins an entity too.
    """
    found: list[Entity] = []
    begin, of_type, last = 0, "", ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, name = parts(tag)
        if prefix and name == of_type and prefix not in _FIRST and last not in _LAST:
            last = prefix
            continue
        if of_type:
            found.append(Entity(begin, place, of_type))
        opens = prefix in _FIRST if strict else bool(prefix)
        begin, of_type, last = place, name if prefix and opens else "", prefix
    return found


def iob2(found: Iterable[Entity], length: int) -> list[str]:
    """The tags of a sentence of `length` words with these entities, which do not overlap."""
    tags = [OUTSIDE] * length
    for entity in found:
        tags[entity.start : entity.end] = [f"I-{entity.type}"] * (entity.end - entity.start)
        tags[entity.start] = f"B-{entity.type}"
    return tags


def in_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Tags of IOB2 in another scheme."""
    found, tags = entities(tags), list(tags)
    for before, entity in zip([None, *found], found, strict=False):
        name, last = entity.type, entity.end - 1
        if scheme == IOB1 and (before is None or before.end < entity.start or before.type != name):
            tags[entity.start] = f"I-{name}"
        elif scheme in _WITH_ENDS:
            inside, end, single = _WITH_ENDS[scheme]
            tags[entity.start + 1 : entity.end] = [f"{inside}-{name}"] * (last - entity.start)
            tags[last] = f"{end}-{name}" if last > entity.start else f"{single}-{name}"
        elif scheme == IO:
            tags[entity.start : entity.end] = [name] * (entity.end - entity.start)
    return tags


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme that tags are written in.

    Names without B- and I- are IO where there is an O among them, else classes of words, as parts of speech are.
    """
    prefixes, names, continued, begins = set(), set(), True, False
    for tags in sentences:
        before = ("", OUTSIDE)
        for tag in tags:
            prefix, name = parts(tag)
            prefixes.add(prefix)
            if not prefix:
                names.add(name)
            follows = before[0] != "" and before[1] == name
            # IOB2 has no I- that begins an entity, IOB1 no B- that follows another entity of its type.
            continued &= prefix != "I" or follows
            begins |= prefix == "B" and not follows
            before = prefix, name
    if "B" in prefixes or "I" in prefixes or prefixes & set("MESLU"):
        return _with_ends(prefixes) or (IOB2 if continued or begins else IOB1)
    return IO if OUTSIDE in names else PLAIN


def _with_ends(prefixes: set[str]) -> str | None:
    """The scheme with marks for the last word that has these prefixes."""
    if prefixes & set("LU"):
        return "BILOU"
    if "M" in prefixes:
        return "BMES"
    return BIOES if prefixes & set("ES") else None


def typed(tags: Iterable[str]) -> list[str]:
    """Tags B and I alone with the one type that there is."""
    return [tag if tag == OUTSIDE else f"{tag}-{UNTYPED}" for tag in tags]


def are_untyped(sentences: Iterable[Sequence[str]]) -> bool:
    """Whether all tags are O and prefixes alone, B or I among them."""
    names = {tag for tags in sentences for tag in tags}
    return names <= set("OBIMESLU") and bool(names & set("BI"))


def scheme_of_labels(names: Iterable[str]) -> str:
    """The scheme of a model by the names of its labels; IOB2 where they have B- or I-."""
    prefixes = {parts(name)[0] for name in names}
    if prefixes & set("BIMESLU"):
        return _with_ends(prefixes) or IOB2
    return IO if OUTSIDE in names else PLAIN


def io_entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of tags without prefixes: neighbours of one name are one."""
    found: list[Entity] = []
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        if found and found[-1].end == place and found[-1].type == tag:
            found[-1] = found[-1]._replace(end=place + 1)
        else:
            found.append(Entity(place, place + 1, tag))
    return found
