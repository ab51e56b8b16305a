"""Statements that agents may not send, decided on tokens as the server's lexer reads them.

KILL can end other sessions of the same account, and a transaction prepared by XA outlives its session. General SQL
tokenizers differ from the server on comments that are executed, nested comments and control characters, which is where
a refused command can be hidden. This one covers MySQL's lexical syntax in its default mode; what it cannot read
unambiguously is refused if it contains a refused word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

#: Refused commands, and the one that executes text, in which they can be hidden. Keywords cannot be escaped.
_WORDS = frozenset({"KILL", "XA", "PREPARE"})
_CONTAINS_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE | re.ASCII)
#: Statements that begin with these contain no other statement, so that the words above can only be names in them.
_SIMPLE = frozenset(
    {"(", "SELECT", "WITH", "VALUES", "TABLE", "SHOW", "DESC", "DESCRIBE", "EXPLAIN", "USE", "DO", "HANDLER"}
    | {"INSERT", "REPLACE", "UPDATE", "DELETE"}
)
#: Settings that change how the server reads quotes, backslashes or multi-byte characters.
_SET = re.compile(r"\bSET\b", re.IGNORECASE)
_LEXICAL_SETTING = re.compile(r"sql_mode|character|charset|names|collation", re.IGNORECASE)
_TOKEN = re.compile(
    r"""
      (?P<skipped> [ \t-\r]+ | \#[^\n\0]* | --(?=[ \t-\r]|\Z)[^\n\0]* | /\*(?!!)[^\0]*?\*/ )
    | (?P<text> '[^'\\]*(?:(?:\\.|'')[^'\\]*)*' | "[^"\\]*(?:(?:\\.|"")[^"\\]*)*" )
    | (?P<name> `[^`]*(?:``[^`]*)*` )
    | (?P<word> [\w$\x80-\U0010ffff]+ )
    # A comment that is executed, the end of one, an unclosed quote or comment, a control character.
    | (?P<ambiguous> /\* | \*/ | ['"`] | [\0-\x1f\x7f] | --[\0-\x1f\x7f] )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)

_VARIABLE = re.compile(
    r"""@([\w$.\x80-\U0010ffff]+ | `(?:[^`]|``)*` | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")""",
    re.VERBOSE | re.DOTALL,
)


class _Token(NamedTuple):
    kind: str
    text: str


def is_refused(statement: str, default_syntax: bool = True) -> bool:
    """Whether `statement` is refused; without `default_syntax` any statement that contains a refused word is."""
    if not _CONTAINS_WORD.search(statement):
        return False
    tokens = _tokens(statement)
    first = next(tokens, _Token("symbol", ""))
    if not default_syntax or first.kind == "ambiguous":
        return True
    if first.text.upper() in _SIMPLE:
        return False
    rest = [first, *tokens]
    executed = _executed_text(rest)
    if executed is not None:
        return is_refused(executed)
    return any(kind == "ambiguous" or (kind == "word" and text.upper() in _WORDS) for kind, text in rest)


def changes_syntax(statement: str) -> bool:
    """Whether `statement` may change how the server reads later statements of its session."""
    return bool(_LEXICAL_SETTING.search(statement) and _SET.search(statement))


def variables(statement: str) -> set[str]:
    """Names after each `@` in `statement`, also in texts, from which a statement may be prepared."""
    return {name.lower() for name in _VARIABLE.findall(statement)} if "@" in statement else set()


def _tokens(statement: str) -> Iterator[_Token]:
    """The tokens of a statement without white space and comments, up to the first ambiguous one."""
    for match in _TOKEN.finditer(statement):
        kind = str(match.lastgroup)
        if kind != "skipped":
            yield _Token(kind, match[0])
        if kind == "ambiguous":
            return


def _executed_text(tokens: list[_Token]) -> str | None:
    """The statement in `PREPARE name FROM 'text'`; None for any other statement.

    None also if the text is computed or written with escapes.
    """
    if len(tokens) != 4 or [token.text.upper() for token in tokens[:3:2]] != ["PREPARE", "FROM"]:
        return None
    kind, text = tokens[3]
    return text[1:-1] if kind == "text" and not re.search(r"\\|''|\"\"", text[1:-1]) else None
