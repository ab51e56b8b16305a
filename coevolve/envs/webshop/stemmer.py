"""Porter's stemmer as implemented by Lucene's `PorterStemFilter`.

The algorithm is Porter, *An algorithm for suffix stripping*, Program 14(3), 1980, with the changes of his later program
(`bli`, `logi`, words of two letters unchanged). Like Lucene, it counts UTF-16 units and treats every character except a
to z as a consonant.
"""

from __future__ import annotations

from array import array

#: Steps 2 and 3: the first matching suffix is replaced if a vowel-consonant pair precedes it.
_STEP_2_SUFFIXES = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3_SUFFIXES = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
#: Step 4: the first matching suffix is removed if two such pairs precede it; `ion` only after s or t.
_STEP_4_SUFFIXES = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "sion", "tion", "ou", "ism", "ate",
    "iti", "ous", "ive", "ize",
)  # fmt: skip


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
    word = _replace_suffix(_replace_suffix(word, _STEP_2_SUFFIXES), _STEP_3_SUFFIXES)
    return _trim_end(_remove_suffix(word))


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


def _replace_suffix(word: str, rules: dict[str, str]) -> str:
    """Step 2 or 3."""
    suffix = _matching_suffix(word, tuple(rules))
    base = word.removesuffix(suffix)
    return base + rules[suffix] if suffix and _measure(base) else word


def _remove_suffix(word: str) -> str:
    """Step 4: removal of a suffix."""
    suffix = _matching_suffix(word, _STEP_4_SUFFIXES)
    base = word.removesuffix("ion" if suffix.endswith("ion") else suffix)
    return base if suffix and _measure(base) > 1 else word


def _matching_suffix(word: str, suffixes: tuple[str, ...]) -> str:
    """The first of `suffixes` that `word` ends with, empty if none."""
    return next(filter(word.endswith, suffixes)) if word.endswith(suffixes) else ""


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
