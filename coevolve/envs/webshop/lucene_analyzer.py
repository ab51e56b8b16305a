"""Index terms of a text, as produced by Lucene 8.11 with Anserini's English analyzer.

The steps are: word breaks by the standard tokenizer (UAX #29, with emoji sequences, of Unicode 9.0), removal of `'s`,
lower-casing, removal of 33 stop words, and Porter's stemmer. One case differs: if a text ends with a lone surrogate,
Lucene drops the rest of its buffer.

The stemmer is that of Lucene's `PorterStemFilter`: Porter, *An algorithm for suffix stripping*, Program 14(3), 1980,
with the changes of his later program (`bli`, `logi`, words of two letters unchanged). Like Lucene, it counts UTF-16
units and treats every character except a to z as a consonant.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain, takewhile

from coevolve import shipped

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


_STEP_2_SUFFIXES = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3_SUFFIXES = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4_SUFFIXES = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "(?<=[st])ion", "ou", "ism", "ate",
    "iti", "ous", "ive", "ize",
)  # fmt: skip
#: The longest suffix is replaced if at least so many vowel-consonant pairs precede it.
_STEPS_2_TO_4 = [
    (rules, re.compile(f"(?:{'|'.join(rules)})\\Z"), least)
    for rules, least in ((_STEP_2_SUFFIXES, 1), (_STEP_3_SUFFIXES, 1), (dict.fromkeys(_STEP_4_SUFFIXES, ""), 2))
]


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


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if word.isascii() or max(word) <= "\uffff":
        return _stem_units(word)
    units = array("H", word.encode("utf-16-le"))
    return _stem_units("".join(map(chr, units))).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _stem_units(word: str) -> str:
    if len(word) <= 2:
        return word
    word = _remove_past(_remove_plural(word))
    if word.endswith("y") and "v" in _letter_classes(word[:-1]):
        word = word[:-1] + "i"
    for step in _STEPS_2_TO_4:
        word = _replace_suffix(word, *step)
    return _trim_end(word)


def _remove_plural(word: str) -> str:
    """Step 1a: plurals."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _remove_past(word: str) -> str:
    """Step 1b: `ed` and `ing`."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    base = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if base == word or "v" not in _letter_classes(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _ends_double(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _ends_cvc(base) else base


def _replace_suffix(word: str, rules: dict[str, str], suffixes: re.Pattern[str], least: int) -> str:
    match = suffixes.search(word)
    if not match or _measure(word[: match.start()]) < least:
        return word
    return word[: match.start()] + rules.get(match[0], "")


def _trim_end(word: str) -> str:
    """Step 5: final `e` and double `l`."""
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _ends_cvc(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word


def _letter_classes(word: str) -> str:
    """`v` for each vowel and `c` for each consonant; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """Porter's measure m: number of vowel-consonant sequences."""
    return _letter_classes(word).count("vc")


def _ends_double(word: str) -> bool:
    """Porter's condition *d: whether `word` ends with a double consonant."""
    return word[-2:-1] == word[-1:] and _letter_classes(word).endswith("c")


def _ends_cvc(word: str) -> bool:
    """Porter's condition *o: whether `word` ends with consonant, vowel, consonant, the last not w, x or y."""
    return _letter_classes(word).endswith("cvc") and word[-1] not in "wxy"


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
