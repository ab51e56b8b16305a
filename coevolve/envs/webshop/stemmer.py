"""Porter's stemmer with the later departures of his own program, as Lucene's `PorterStemFilter` has it.

The algorithm is Porter, *An algorithm for suffix stripping*, Program 14(3), 1980; the departures (`bli`, `logi`, words
of two letters left alone) are listed on his page. Like Lucene's it counts UTF-16 units and takes every letter that is
not a to z for a consonant.
"""

from __future__ import annotations

from array import array

#: Steps 2 and 3: the first suffix that a word ends in is replaced, if a vowel-consonant pair comes before it.
_DERIVED = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_ENDINGS = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
#: Step 4: the first goes, if two such pairs come before it; `ion` only after s or t.
_SUFFIXES = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate",
    "iti", "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """The stem of a lower-case word."""
    if word.isascii() or max(word) <= "\uffff":
        return _stem(word)
    units = array("H", word.encode("utf-16-le"))
    return _stem("".join(map(chr, units))).encode("utf-16-le", "surrogatepass").decode("utf-16-le")


def _stem(word: str) -> str:
    if len(word) <= 2:
        return word
    word = _past(_plural(word))
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(_replaced(word, _DERIVED), _ENDINGS)
    return _final(_stripped(word))


def _plural(word: str) -> str:
    """Step 1a."""
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    """Step 1b."""
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    base = word.removesuffix("ed") if word.endswith("ed") else word.removesuffix("ing")
    if base == word or "v" not in _shape(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return base + "e"
    if _doubled(base):
        return base if base[-1] in "lsz" else base[:-1]
    return base + "e" if _measure(base) == 1 and _short(base) else base


def _replaced(word: str, rules: dict[str, str]) -> str:
    """Steps 2 and 3."""
    suffix = _suffix(word, tuple(rules))
    base = word.removesuffix(suffix)
    return base + rules[suffix] if suffix and _measure(base) else word


def _stripped(word: str) -> str:
    """Step 4."""
    suffix = _suffix(word, _SUFFIXES)
    base = word.removesuffix("ion" if suffix.endswith("ion") else suffix)
    return base if suffix and _measure(base) > 1 else word


def _suffix(word: str, suffixes: tuple[str, ...]) -> str:
    """The first that a word ends in, or nothing."""
    return next(filter(word.endswith, suffixes)) if word.endswith(suffixes) else ""


def _final(word: str) -> str:
    """Step 5."""
    measure = _measure(word)
    if word.endswith("e") and (measure > 1 or (measure == 1 and not _short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and measure > 1 else word


def _shape(word: str) -> str:
    """`v` for each vowel and `c` for each consonant; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """How many times a consonant follows a vowel."""
    return _shape(word).count("vc")


def _doubled(word: str) -> bool:
    return word[-2:-1] == word[-1:] and _shape(word).endswith("c")


def _short(word: str) -> bool:
    """Whether a word ends consonant, vowel, consonant, and the last is none of w, x and y."""
    return _shape(word).endswith("cvc") and word[-1] not in "wxy"
