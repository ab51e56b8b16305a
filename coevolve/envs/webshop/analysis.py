"""From text to index terms, as Lucene 8.11 with anserini's English analyzer makes them.

The standard tokenizer breaks words (UAX #29 and emoji sequences of Unicode 9.0); then `'s` goes, letters become small,
33 stop words go, and Porter's stemmer has its turn. One thing is not followed: of a text that ends in half a surrogate
pair Lucene loses what is still in its buffer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, chain, takewhile

from coevolve.envs.webshop.stemmer import stem
from coevolve.envs.webshop.wordbreaks import Classes

#: Words of more UTF-16 units than this are broken.
LONGEST = 255
#: So many words' terms are remembered, in about 100 MB.
REMEMBERED = 1 << 19
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))  # fmt: skip

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ASCII_WORD = re.compile(
    r"_*[A-Za-z0-9]\w*(?:(?:(?<=[A-Za-z])[.':](?=[A-Za-z])|(?<=[0-9])[.',;](?=[0-9]))\w+)*", re.ASCII
)

# Greedy and never possessive, which Python 3.11.2 (Debian 12) matches wrongly: what follows a repetition here begins
# with other characters than it repeats, or may be left out, so nothing is ever given back.
# From here on classes are matched, a letter for each character. Marks belong to the character they follow.
_MARKS = "[xtvkjgzs]*"
_LETTERS = f"[LEW]{_MARKS}(?:[lbq]{_MARKS}[LEW]{_MARKS})*"
_DIGITS = f"N{_MARKS}(?:[nbq]{_MARKS}N{_MARKS})*"
_HEBREW = f"W{_MARKS}(?:q{_MARKS}|d{_MARKS}W{_MARKS})"
_RUN = f"(?:(?:{_HEBREW}|{_LETTERS}|{_DIGITS})+|(?:K{_MARKS})+)"
_JOINT = f"(?:_{_MARKS})"
_WORD = re.compile(f"{_JOINT}*{_RUN}(?:{_JOINT}+{_RUN})*{_JOINT}*|C{_MARKS}|(?:[Ss]{_MARKS})+")
_PLAIN = "[xkgzsj]*"
_PICTURE = f"(?:B{_PLAIN}(?:M{_PLAIN}|v)?|[PE]{_PLAIN}v?|M{_PLAIN})"
_JOINED = f"(?:(?<=j)|(?<=v)(?:j(?=M)|j+(?=[BPE]))){_PICTURE}"
_KEYCAP = f"#(?:{_PLAIN}vk|[xgzsj]*k){_PLAIN}"
_FLAG = f"R{_MARKS}R{_MARKS}"
_TAGGED = f"j*[BPE]{_PLAIN}vg+z"
_EMOJI = re.compile(f"{_KEYCAP}|{_FLAG}|{_TAGGED}|(?:j*(?=[BPE])|(?=M)){_PICTURE}(?:{_JOINED})*")
_CLASSES = Classes()


def terms(text: str) -> list[str]:
    """The index terms of a text, in order."""
    return list(filter(None, map(_TERMS.__getitem__, words(text))))


def words(text: str) -> list[str]:
    """The words of a text, in order, before anything is done to them."""
    found = _ASCII_WORD.findall(text) if text.isascii() else list(chain.from_iterable(_stretches(text)))
    if max(map(len, found), default=0) <= LONGEST:
        return found
    return list(chain.from_iterable(map(_broken, found)))


def _stretches(text: str) -> Iterator[list[str]]:
    """The words of a text with other than ASCII characters; what stands between two blanks is looked at apart."""
    start = 0
    while found := _NOT_ASCII.search(text, start):
        left = max(text.rfind(" ", start, found.start()), start)
        right = (text.find(" ", found.end()) + 1 or len(text) + 1) - 1
        yield _ASCII_WORD.findall(text, start, left)
        yield list(_broken(text[left:right]))
        start = right
    yield _ASCII_WORD.findall(text, start)


def _broken(text: str) -> Iterator[str]:
    """The words of any text: the longest from each place on that is no longer than Lucene's buffer."""
    classes = text.translate(_CLASSES)
    start = 0
    while start < len(text):
        end = _end(classes, start, len(text))
        if 2 * (end - start) > LONGEST:
            end = _end(classes, start, min(end, start + _fitting(text[start : start + LONGEST])))
        if end > start:
            yield text[start:end]
        start = max(end, start + 1)


def _end(classes: str, start: int, limit: int) -> int:
    """Where the longest word or emoji from `start` on ends; `start` if there is none."""
    matches = (_WORD.match(classes, start, limit), _EMOJI.match(classes, start, limit))
    return max(match.end() if match else start for match in matches)


def _fitting(text: str) -> int:
    """How many characters fit into Lucene's buffer."""
    units = accumulate(2 if character > "\uffff" else 1 for character in text)
    return sum(1 for _ in takewhile(lambda total: total <= LONGEST, units))


class _Terms(dict[str, str]):
    """Word -> term, nothing for a stop word."""

    def __missing__(self, word: str) -> str:
        if len(self) >= REMEMBERED:
            self.clear()
        base = word[:-2] if word.endswith(("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")) else word
        # Java maps one letter to one letter, whatever stands around it.
        small = base.lower() if base.isascii() else "".join(letter.lower()[0] for letter in base)
        self[word] = "" if small in STOP_WORDS else stem(small)
        return self[word]


_TERMS = _Terms()
