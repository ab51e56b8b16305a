"""The page of interfaces is true: its example runs without the repository and prints what it shows."""


def test_the_example_prints_what_it_shows(read, tmp_path, monkeypatch, capsys):
    page = read("api")
    (code,), (shown,) = page.blocks("python"), page.blocks("text")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/extend/api.md", "exec"), {})
    assert capsys.readouterr().out == shown
