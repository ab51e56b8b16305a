"""Hooks of MkDocs: the README as the home, the navigation from the tables of docs/README.md, pages for other files.

A link that leaves docs/ leads to a page below `source/` with the file's text, or to a copy of the file. The pages of
results/reference stand in the navigation and in the search.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

#: A heading of docs/README.md, and the pages in its table.
GROUP = re.compile(r"^## (.+)\n((?:(?!## ).*\n)+)", re.MULTILINE)
LISTED = re.compile(r"^\| \[\w+\.md\]\((\w+/\w+\.md)\)", re.MULTILINE)
#: The site's names of the home and of the index of all pages.
HOME, INDEX = "index.md", "pages.md"
#: The committed results; their pages stand in the group of this heading.
RESULTS, READ = "results/reference", "Read and publish results"
#: A block or piece of code, or a link to a file.
CODE_OR_LINK = re.compile(
    r"^ *(?P<fence>```+).*?^ *(?P=fence) *$|`[^`\n]+`|(?<=\]\()(?P<link>[^)#:\s]+)", re.MULTILINE | re.DOTALL
)
FENCE = re.compile(r"\A( *```+\w+) .*")
#: The languages of the pages with a file's text; other files are copied.
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".sh": "bash",
    ".lock": "text",
    "": "text",
}
HEAD = "---\nsearch: {exclude: true}\n---\n\n"
#: Names in the site of the files and folders that have a page or a copy.
NAMES: dict[Path, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The pages in the groups and the order of docs/README.md."""
    docs = Path(config.docs_dir)
    index = (docs / "README.md").read_text(encoding="utf-8")
    groups = {heading: LISTED.findall(text) for heading, text in GROUP.findall(index)}
    groups[READ][:0] = [f"source/{RESULTS}/{path.name}" for path in sorted((docs.parent / RESULTS).glob("*.md"))]
    config.nav = [HOME, *({heading: pages} for heading, pages in groups.items() if pages), INDEX]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README and the files outside of docs/ that pages link to, and those that these link to."""
    docs = Path(config.docs_dir)
    root = docs.parent
    NAMES.clear()
    NAMES.update({Path(str(file.abs_src_path)): file.src_uri for file in files})
    files.remove(files.src_uris["README.md"])
    for name, path in ((HOME, root / "README.md"), (INDEX, docs / "README.md")):
        NAMES[path] = name
        files.append(File.generated(config, name, content=path.read_text(encoding="utf-8")))
    waiting = [path for path in NAMES if path.suffix == ".md"]
    while waiting:
        for path in _linked(waiting.pop()):
            if path not in NAMES and path.exists():
                NAMES[path] = _name(path.relative_to(root).as_posix(), path)
                files.append(_file(path, NAMES[path], config))
                waiting.append(path)
    return files


def on_page_markdown(markdown: str, /, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The text of a page, with links to names in the site."""
    origin = next(path for path, name in NAMES.items() if name == page.file.src_uri)
    folder = Path(page.file.src_uri).parent

    def named(found: re.Match[str]) -> str:
        if not found["link"]:
            return FENCE.sub(r"\1", found[0])
        name = NAMES.get(_resolved(origin, found["link"]))
        return os.path.relpath(name, folder) if name else found[0]

    return CODE_OR_LINK.sub(named, markdown)


def _name(path: str, source: Path) -> str:
    if source.is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if source.suffix in LANGUAGES else f"source/{path}"


def _file(path: Path, name: str, config: MkDocsConfig) -> File:
    """A page with the text of a file or the names in a folder, or a copy."""
    if not name.endswith(".md"):
        return File.generated(config, name, abs_src_path=str(path))
    if path.is_dir():
        text = f"# {path.name}\n\n" + "\n".join(f"* [{each.name}]({path.name}/{each.name})" for each in _inside(path))
    else:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".md":
            text = f"# {path.name}\n\n````{LANGUAGES[path.suffix]}\n{text}````\n"
    if path.parent.as_posix().endswith(RESULTS) and path.suffix == ".md":
        return File.generated(config, name, content=text)
    return File.generated(config, name, content=HEAD + text, inclusion=InclusionLevel.NOT_IN_NAV)


def _linked(path: Path) -> list[Path]:
    """What a Markdown file links to, or what is in a folder."""
    if path.is_dir():
        return _inside(path)
    text = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
    return [_resolved(path, found["link"]) for found in CODE_OR_LINK.finditer(text) if found["link"]]


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _resolved(origin: Path, link: str) -> Path:
    """The file or folder that a link of `origin` leads to; of a folder its README.md, if it has one."""
    path = Path(os.path.normpath(origin.parent / link))
    return path / "README.md" if (path / "README.md").exists() else path
