"""Tags of words and the entities that they mark: IOB1, IOB2, BIOES (BILOU, BMES), and plain names.

Inside, entities are written in IOB2: B-TYPE for the first word, I-TYPE for the others, O for words of none (Ramshaw and
Marcus 1995; Tjong Kim Sang and Veenstra 1999).
"""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

OUTSIDE = "O"
# BILOU calls the last word L and a single one U; BMES calls the words between M.
_PREFIXED = re.compile(r"([BIMESLU])-(.+)", re.DOTALL)
_RESPELT_BEFORE = re.compile(r"(?P<mark>[BIbi])[-_:./ ](?P<type>.+)", re.DOTALL)
_RESPELT_BEHIND = re.compile(r"(?P<type>.+)[-_:./ ](?P<mark>[BIbi])", re.DOTALL)
_FIRST, _LAST = "BSU", "ESLU"
# What begins entities. Without one of these, tags are names, some of which may look prefixed (E-mail).
_BEGINNINGS = frozenset("BISU")
IOB1, IOB2, BIOES, IO, PLAIN = "IOB1", "IOB2", "BIOES", "IO", "names"
# Of a scheme with marks for the last word: those of the words between, of the last and of a single one.
_WITH_ENDS = {BIOES: "IES", "BILOU": "ILU", "BMES": "MES"}
SCHEMES = (IOB1, IOB2, *_WITH_ENDS, IO, PLAIN)
UNTYPED = "entity"
"""The type of entities whose tags are B and I alone."""
# Each tag is that of many words. More different ones than this are labels that are no tags.
_MOST_TAGS = 10_000


class Entity(NamedTuple):
    """Words `start` to `end` (the first one after it) of a type."""

    start: int
    end: int
    type: str


@lru_cache(_MOST_TAGS)
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
    if prefixes & _BEGINNINGS:
        return _with_ends(prefixes) or (IOB2 if continued or begins else IOB1)
    return IO if OUTSIDE in names else PLAIN


def respelt(names: Iterable[str]) -> tuple[str, str] | None:
    """Two of the names that look like B- and I- of one type in another spelling, as b-gene and i-gene, or gene_B and
    gene_I."""
    places: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        for match in filter(None, (_RESPELT_BEFORE.fullmatch(name), _RESPELT_BEHIND.fullmatch(name))):
            of_one = places.setdefault((match["type"], match.re.pattern), {})
            of_one[match["mark"].upper()] = name
            if len(of_one) == 2:
                return of_one["B"], of_one["I"]
    return None


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
    if prefixes & _BEGINNINGS:
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


class TagScheme(NamedTuple):
    """How the tags of rows are written.

    Args:
        name: IOB1, IOB2, BIOES, BILOU, BMES, IO (names of entities), or names (classes of words).
        has_types: whether entities have types, or tags are B and I alone.
    """

    name: str = IOB2
    has_types: bool = True

    @classmethod
    def of(cls, sentences: Collection[Sequence[str]]) -> "TagScheme":
        """That of these sentences (see `scheme_of`)."""
        has_types = not are_untyped(sentences)
        return cls(scheme_of(sentences if has_types else map(typed, sentences)), has_types)

    @property
    def of_words(self) -> bool:
        """Whether every tag is a class of words."""
        return self.name == PLAIN

    def oddity(self, tags: Iterable[str], show_text: bool) -> str:
        """What is wrong with the tags of a row beside those of the others; empty for nothing."""
        if not self.has_types:
            odd = [tag for tag in tags if tag not in set("OBIMESLU")]
            others = "are B, I and O alone"
        else:
            are_names = self.name in (IO, PLAIN)
            prefixes = {tag: parts(tag)[0] for tag in tags if tag != OUTSIDE}
            odd = [tag for tag, prefix in prefixes.items() if (prefix in _BEGINNINGS if are_names else not prefix)]
            others = "are names without B- and I-" if are_names else "begin with B- or I-"
        return f"{f'the tag {odd[0]!r:.42}' if show_text else 'a tag'}, where others {others}" if odd else ""

    def read(self, tags: Sequence[str]) -> Sequence[str]:
        """The tags of a row as they are learned: entities in IOB2."""
        if self.of_words:
            return tags
        tags = tags if self.has_types else typed(tags)
        return iob2(io_entities(tags) if self.name == IO else entities(tags), len(tags))

    def written(self, tags: Sequence[str]) -> list[str]:
        """Learned tags as the rows have them."""
        if self.of_words:
            return list(tags)
        found = in_scheme(tags, self.name)
        return found if self.has_types else [tag.removesuffix(f"-{UNTYPED}") for tag in found]


AS_LEARNED = TagScheme()
"""That of the tags that are learned."""
