"""Index terms of a text, as produced by Lucene 8.11 with Anserini's English analyzer.

The steps are: word breaks by the standard tokenizer (UAX #29, with emoji sequences, of Unicode 9.0), removal of `'s`,
lower-casing, removal of 33 stop words, and Porter's stemmer. One case differs: if a text ends with a lone surrogate,
Lucene drops the rest of its buffer.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, takewhile

from coevolve import shipped
from coevolve.envs.webshop.stemmer import stem

#: Longer words, in UTF-16 units, are split.
MAX_WORD_UNITS = 255
#: Words whose terms are cached, which takes about 100 MB.
MAX_CACHED_WORDS = 1 << 19
STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))  # fmt: skip

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ASCII_WORD = re.compile(
    r"(?<!_)_*[A-Za-z0-9]\w*(?:(?:(?<=[A-Za-z])[.':](?=[A-Za-z])|(?<=[0-9])[.',;](?=[0-9]))\w+)*", re.ASCII
)

# `word_breaks.txt` has runs from Lucene's tables, code point by code point from U+0000 on: a word-break class, and the
# number of successive code points that have it, if more than one. Classes that lead to the same tokens are merged:
#
#     L letter, Hangul      l joins letters       R regional indicator     k keycap mark U+20E3
#     W Hebrew letter       n joins digits        P pictograph             v emoji selector U+FE0F
#     E letter and emoji    b joins either        B pictograph before M    t text selector U+FE0E
#     N digit               q apostrophe          M skin tone              j zero-width joiner U+200D
#     K Katakana            d double quote        # number sign, asterisk  g, z tag, cancel tag
#     C Han, Hiragana       _ joins all           S South-East Asian       x other mark or format character
#     - none of these                             s S and a mark
_FILE = shipped.DATA / "webshop" / "word_breaks.txt"
_RUNS = re.findall(r"(\D)(\d*)", "".join(_FILE.read_text(encoding="utf-8").split()))
_RUN_ENDS = list(accumulate(int(length or 1) for _, length in _RUNS))

# The quantifiers are greedy and never possessive: Python 3.11.2 (Debian 12) matches possessive ones wrongly. No
# backtracking results, since what follows a repetition begins with a character that it does not repeat, or is optional.
# The following patterns match word-break classes, a letter for each character. Marks belong to the preceding character.
_MARKS = "[xtvkjgzs]*"
_LETTERS = f"[LEW]{_MARKS}(?:[lbq]{_MARKS}[LEW]{_MARKS})*"
_DIGITS = f"N{_MARKS}(?:[nbq]{_MARKS}N{_MARKS})*"
_HEBREW = f"W{_MARKS}(?:q{_MARKS}|d{_MARKS}W{_MARKS})"
_RUN = f"(?:(?:{_HEBREW}|{_LETTERS}|{_DIGITS})+|(?:K{_MARKS})+)"
_CONNECTOR = f"(?:_{_MARKS})"
_WORD = re.compile(f"{_CONNECTOR}*{_RUN}(?:{_CONNECTOR}+{_RUN})*{_CONNECTOR}*|C{_MARKS}|(?:[Ss]{_MARKS})+")
_EMOJI_MARKS = "[xkgzsj]*"
_PICTOGRAPH = f"(?:B{_EMOJI_MARKS}(?:M{_EMOJI_MARKS}|v)?|[PE]{_EMOJI_MARKS}v?|M{_EMOJI_MARKS})"
_JOINED_PICTOGRAPH = f"(?:(?<=j)|(?<=v)(?:j(?=M)|j+(?=[BPE]))){_PICTOGRAPH}"
_KEYCAP = f"#(?:{_EMOJI_MARKS}vk|[xgzsj]*k){_EMOJI_MARKS}"
_FLAG = f"R{_MARKS}R{_MARKS}"
_TAG_SEQUENCE = f"j*[BPE]{_EMOJI_MARKS}vg+z"
_EMOJI = re.compile(f"{_KEYCAP}|{_FLAG}|{_TAG_SEQUENCE}|(?:j*(?=[BPE])|(?=M)){_PICTOGRAPH}(?:{_JOINED_PICTOGRAPH})*")
#: Where no word begins, none begins at a later connector, or joiner, of the same chain either.
_CHAIN = re.compile(f"{_CONNECTOR}+|j+")


class _WordBreakClasses(dict[int, str]):
    """Classes by code point, for `str.translate`; filled on demand."""

    def __missing__(self, point: int) -> str:
        run = bisect_right(_RUN_ENDS, point)
        self[point] = _RUNS[run][0] if run < len(_RUNS) else "-"
        return self[point]


_WORD_BREAK_CLASSES = _WordBreakClasses()


def index_terms(text: str) -> list[str]:
    """The index terms of a text, in order."""
    return list(filter(None, map(_TERM_CACHE.__getitem__, split_words(text))))


def split_words(text: str) -> list[str]:
    """The words of a text, in order and unchanged."""
    split = _ASCII_WORD.findall(text) if text.isascii() else list(chain.from_iterable(_words_between_spaces(text)))
    if max(map(len, split), default=0) <= MAX_WORD_UNITS:
        return split
    return list(chain.from_iterable(map(_unicode_words, split)))


def _words_between_spaces(text: str) -> Iterator[list[str]]:
    """The words of a text with characters outside ASCII; each part between two spaces is split separately."""
    start = 0
    while match := _NOT_ASCII.search(text, start):
        left = max(text.rfind(" ", start, match.start()), start)
        right = (text.find(" ", match.end()) + 1 or len(text) + 1) - 1
        yield _ASCII_WORD.findall(text, start, left)
        yield list(_unicode_words(text[left:right]))
        start = right
    yield _ASCII_WORD.findall(text, start)


def _unicode_words(text: str) -> Iterator[str]:
    """The words of any text: from each position on, the longest word that fits into Lucene's buffer."""
    classes = text.translate(_WORD_BREAK_CLASSES)
    start, chain_ends = 0, dict[str, int]()
    while start < len(text):
        if start < chain_ends.get(classes[start], 0):
            start += 1
            continue
        end = _word_end(classes, start, len(text))
        if 2 * (end - start) > MAX_WORD_UNITS:
            end = _word_end(
                classes, start, min(end, start + _characters_that_fit(text[start : start + MAX_WORD_UNITS]))
            )
        if end > start:
            yield text[start:end]
        elif chain := _CHAIN.match(classes, start):
            chain_ends[classes[start]] = chain.end()
        start = max(end, start + 1)


def _word_end(classes: str, start: int, limit: int) -> int:
    """End of the longest word or emoji that begins at `start`; `start` if none does."""
    matches = (_WORD.match(classes, start, limit), _EMOJI.match(classes, start, limit))
    return max(match.end() if match else start for match in matches)


def _characters_that_fit(text: str) -> int:
    """Number of characters at the start of `text` that fit into Lucene's buffer."""
    units = accumulate(2 if character > "\uffff" else 1 for character in text)
    return sum(1 for _ in takewhile(lambda total: total <= MAX_WORD_UNITS, units))


class _TermCache(dict[str, str]):
    """Cache of terms by word; the term of a stop word is empty."""

    def __missing__(self, word: str) -> str:
        if len(self) >= MAX_CACHED_WORDS:
            self.clear()
        base = word[:-2] if word.endswith(("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")) else word
        # Java's Character.toLowerCase maps each letter to one letter, regardless of its neighbours.
        lower = base.lower() if base.isascii() else "".join(letter.lower()[0] for letter in base)
        self[word] = "" if lower in STOP_WORDS else stem(lower)
        return self[word]


_TERM_CACHE = _TermCache()
