"""Porter's stemmer as implemented by Lucene's `PorterStemFilter`.

The algorithm is Porter, *An algorithm for suffix stripping*, Program 14(3), 1980, with the changes of his later program
(`bli`, `logi`, words of two letters unchanged). Like Lucene, it counts UTF-16 units and treats every character except a
to z as a consonant.
"""

import re
from array import array

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
