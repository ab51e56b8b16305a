"""Word-break classes of characters in Unicode 9.0, as used by Lucene 8's standard tokenizer.

`word_breaks.txt` holds runs from that tokenizer's tables, code point by code point from U+0000 on: a class, and the
number of successive code points that have it, if more than one. Classes that lead to the same tokens are merged:

    L letter, Hangul      l joins letters       R regional indicator     k keycap mark U+20E3
    W Hebrew letter       n joins digits        P pictograph             v emoji selector U+FE0F
    E letter and emoji    b joins either        B pictograph before M    t text selector U+FE0E
    N digit               q apostrophe          M skin tone              j zero-width joiner U+200D
    K Katakana            d double quote        # number sign, asterisk  g, z tag, cancel tag
    C Han, Hiragana       _ joins all           S South-East Asian       x other mark or format character
    - none of these                             s S and a mark
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import accumulate

from coevolve import shipped

_FILE = shipped.DATA / "webshop" / "word_breaks.txt"
_RUNS = re.findall(r"(\D)(\d*)", "".join(_FILE.read_text(encoding="utf-8").split()))
_NAMES = [name for name, _ in _RUNS]
_ENDS = list(accumulate(int(length or 1) for _, length in _RUNS))


class WordBreakClasses(dict[int, str]):
    """Classes by code point, for `str.translate`; filled on demand."""

    def __missing__(self, point: int) -> str:
        run = bisect_right(_ENDS, point)
        self[point] = _NAMES[run] if run < len(_NAMES) else "-"
        return self[point]
