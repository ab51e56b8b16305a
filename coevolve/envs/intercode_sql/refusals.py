"""Statements that agents may not send, decided on the first word as the server's lexer reads it.

KILL can end other sessions of the same account, and a transaction prepared by XA outlives its session. General SQL
tokenizers differ from the server on comments that are executed, nested comments and control characters, which is where
a refused command can be hidden. Here only white space and plain comments may precede the first word; a statement that
begins otherwise, or with a command that may contain others, is refused if it contains a refused word anywhere.
"""

import re

#: Refused commands, and the one that executes text, in which they can be hidden. Keywords cannot be escaped.
_CONTAINS_WORD = re.compile(r"\b(?:KILL|XA|PREPARE)\b", re.IGNORECASE | re.ASCII)
_SKIPPED = re.compile(r"(?: [ \t-\r]+ | \#[^\n\0]* | --(?=[ \t-\r]|\Z)[^\n\0]* | /\*(?!!)[^\0]*?\*/ )*", re.VERBOSE)
#: Statements that begin with these contain no other statement, so that the words above can only be names in them.
_SIMPLE = re.compile(
    r"(?: \( | (?:SELECT|WITH|VALUES|TABLE|SHOW|DESC|DESCRIBE|EXPLAIN|USE|DO|HANDLER|SET|INSERT|REPLACE|UPDATE|DELETE)"
    r"(?![\w$\x80-\U0010ffff]) )",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
#: The statement in `PREPARE name FROM 'text'`, where the text is neither computed nor written with escapes.
_PREPARED = re.compile(r"""PREPARE\s+\w+\s+FROM\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*""", re.IGNORECASE | re.ASCII)
#: Settings that change how the server reads quotes, backslashes or multi-byte characters.
_SET = re.compile(r"\bSET\b", re.IGNORECASE)
_LEXICAL_SETTING = re.compile(r"sql_mode|character|charset|names|collation", re.IGNORECASE)
_VARIABLE = re.compile(
    r"""@([\w$.\x80-\U0010ffff]+ | `(?:[^`]|``)*` | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")""",
    re.VERBOSE | re.DOTALL,
)


def is_refused(statement: str, default_syntax: bool = True) -> bool:
    """Whether `statement` is refused; without `default_syntax` any statement that contains a refused word is."""
    if not _CONTAINS_WORD.search(statement):
        return False
    text = _SKIPPED.sub("", statement, count=1)  # matches at the beginning, if only nothing
    if default_syntax and (prepared := _PREPARED.fullmatch(text)):
        return is_refused(prepared[1] or prepared[2] or "")
    return not default_syntax or not _SIMPLE.match(text)


def changes_syntax(statement: str) -> bool:
    """Whether `statement` may change how the server reads later statements of its session."""
    return bool(_LEXICAL_SETTING.search(statement) and _SET.search(statement))


def variables(statement: str) -> set[str]:
    """Names after each `@` in `statement`, also in texts, from which a statement may be prepared."""
    return {name.lower() for name in _VARIABLE.findall(statement)} if "@" in statement else set()
