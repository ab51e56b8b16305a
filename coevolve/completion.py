"""Shell completion: a script for bash or zsh."""

from collections.abc import Mapping, Sequence

SHELLS = ("bash", "zsh")
_SCRIPT = """\
_coevolve() {{
  local words=
  case "${{COMP_WORDS[*]:1:$((COMP_CWORD - 1))}} " in
{cases}
  esac
  case "${{COMP_WORDS[COMP_CWORD - 1]}}" in
    --suite) words=$(cd configs/suites 2>/dev/null && ls *.yaml && cd studies && ls *.yaml) ;;
    --machine) words=$(cd configs/machines 2>/dev/null && ls *.yaml) ;;
  esac
  COMPREPLY=($(compgen -W "${{words//.yaml/}}" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _coevolve coevolve
"""


def script(shell: str, names: Mapping[str, Sequence[str]], options: Mapping[str, Sequence[str]]) -> str:
    """The script for one of `SHELLS`.

    `names`: the names that may follow the words of a group, such as "mirror" ("" for the command line's first word).
    `options`: the options that may follow the words of a command, such as "mirror list".
    """
    exact = [f'    "{words} ") words="{" ".join(following)}" ;;' for words, following in names.items()]
    alike: dict[str, list[str]] = {}
    for words, following in options.items():
        alike.setdefault(" ".join(following), []).append(f'"{words} "*')
    begun = [f'    {" | ".join(words)}) words="{following}" ;;' for following, words in alike.items()]
    head = "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    return head + _SCRIPT.format(cases="\n".join([*exact, *begun]))
