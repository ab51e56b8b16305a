"""The report page as a Jinja template."""

TEMPLATE = """\
{#- The report's page; coevolve/report/html.py gives the variables. -#}
{%- macro measured(each, row, column) -%}
{%- for cell in each.table.cells if (cell.row, cell.column) == (row, column) -%}
{%- if cell.estimate -%}
{% set address = link(cell) %}{% if address %}<a href="{{ address }}">{{ "%.1f" | format(cell.estimate.mean) }}</a>{% else %}{{ "%.1f" | format(cell.estimate.mean) }}{% endif %} <span class="quiet">{{ estimate_text(cell.estimate).partition(" ")[2] }}</span>
{%- else -%}
<span class="quiet">not run</span>
{%- endif -%}
{%- if cell.paper is not none -%}
<br><span class="quiet">paper{{ ", " ~ paper_model if paper_model }} {{ "%.1f" | format(cell.paper) }}
{%- for note in each.table.footnotes if (row, column) in note.cells %} <a href="#{{ each.id }}-{{ note.mark }}">{{ note.mark }}</a>{% endfor -%}
</span>
{%- endif -%}
{%- endfor -%}
{%- endmacro -%}
{%- macro listed(each, notes) -%}
{% if notes %}
<ul>
{% for note in notes %}
<li id="{{ each.id }}-{{ note.mark }}" class="quiet">Note {{ note.mark }}: {{ note.text }}</li>
{% endfor %}
</ul>
{% endif %}
{%- endmacro -%}
{%- macro cells(each, part) -%}
{% call wide(each.title) %}
<table class="cells">
<thead><tr><th scope="col"></th>{% for label in part.columns.values() %}<th scope="col">{{ label }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row, label in part.rows.items() %}
<tr><th scope="row">{{ label }}</th>{% for column in part.columns %}<td>{{ measured(each, row, column) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
{% endcall %}
{%- endmacro -%}
{%- macro table_section(each, first) -%}
<h2 id="{{ each.id }}">{{ each.title }}, {{ each.table.unit }}</h2>
<p class="quiet">{{ each.table.caption | replace(in_brackets, "Brackets: intervals; below them the paper's cell") }} Data: <a href="{{ each.data }}">{{ each.data.rpartition("/")[2] }}</a>.
{% if first and view %}
Every measured number links to its episodes in the <a href="{{ view }}">view</a> (<code>coevolve view</code> writes it); <code>coevolve why CELL</code> walks back further.
{% endif %}
</p>
{% for part in each.parts %}
{% if part.title %}
<details><summary>{{ part.title }}</summary>
{{ cells(each, part) }}
{{ listed(each, part.notes) }}
</details>
{% else %}
<div class="beside">
{{ cells(each, part) }}
{% if first and differences %}
<section aria-labelledby="differences">
<h2 id="differences">Differences, paired by task and seed</h2>
{% call wide("Differences") %}
{{ differences | safe }}
{% endcall %}
</section>
{% endif %}
</div>
{{ listed(each, part.notes) }}
{% endif %}
{% endfor %}
{%- endmacro -%}
{%- macro figure_section(figure) -%}
<section aria-labelledby="{{ figure.id }}">
<h2 id="{{ figure.id }}">{{ figure.title }}</h2>
<p class="quiet">{{ figure.caption }}{% if figure.data | length <= 5 %} Data: {% for name, address in figure.data %}<a href="{{ address }}">{{ name }}</a>{{ ", " if not loop.last }}{% endfor %}.{% endif %}</p>
{% for image in figure.images %}
{% call wide(figure.title) %}
{{ image | safe }}
{% endcall %}
{% endfor %}
{% for text in figure.texts %}
{{ folded_text(text) }}
{% endfor %}
{% if figure.data | length > 5 %}
<details><summary>Data: {{ figure.data | length }} files</summary>
<ul>{% for name, address in figure.data %}<li><a href="{{ address }}">{{ name }}</a></li>{% endfor %}</ul>
</details>
{% endif %}
</section>
{%- endmacro -%}
{%- macro verdict_rows(rows) -%}
<table class="blocks">
<thead><tr>{% for head in verdict_heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for text in row %}{% if loop.first %}<th scope="row">{{ text }}</th>{% else %}<td data-label="{{ verdict_heads[loop.index0] }}">{{ text }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}
</tbody></table>
{%- endmacro -%}
{%- macro wide(label) -%}
<div class="wide" tabindex="0" role="region" aria-label="{{ label }}">
{{ caller() }}</div>
{%- endmacro -%}
{%- macro folded_text(text) -%}
<details><summary>{{ text.title }}</summary>
<p class="quiet">Data: <a href="{{ text.data }}">{{ text.data.rpartition("/")[2] }}</a>.</p>
{% call wide(text.title) %}
{{ text.html | safe }}
{% endcall %}
</details>
{%- endmacro -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{{ title }}</title>
<style>
:root {
  color-scheme: light dark; --quiet: #5c5c5c; --line: #d5d5d5; --link: #0b57a4; --paper: #fff; --text: #1b1b1b;
}
@media (prefers-color-scheme: dark) {
  :root { --quiet: #a5a5a5; --line: #3a3b3d; --link: #8ab8f0; --paper: #161718; --text: #e6e6e6; }
}
body { margin: 0 auto; max-width: 80rem; padding: 1rem; font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper); overflow-wrap: break-word; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
a { color: var(--link); }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid var(--text); border-bottom: 2px solid var(--text); margin: 0.6rem 0; }
th, td { text-align: left; padding: 0.2rem 0.9rem 0.2rem 0; vertical-align: top; font-variant-numeric: tabular-nums; }
.cells td { white-space: nowrap; }
thead th { border-bottom: 1px solid var(--text); }
.beside { display: flex; flex-wrap: wrap; gap: 0 2rem; } .beside > * { flex: 1 1 auto; max-width: 100%; }
.beside section { flex-basis: 30rem; min-width: 0; } .beside h2 { font-size: 1rem; margin: 0.6rem 0 0; } .beside .drawn { max-width: max(100%, 34rem); }
.quiet { color: var(--quiet); font-size: 0.85rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.1rem 1.2rem; }
dt { color: var(--quiet); } dd { margin: 0; }
summary { cursor: pointer; padding: 0.2rem 0; font-weight: 600; }
pre { white-space: pre-wrap; }
.drawn { display: block; max-width: max(100%, 52rem); height: auto; margin-bottom: 1rem; }
@media (max-width: 40rem) {
  .cells td { white-space: normal; }
  .blocks thead { display: none; }
  .blocks, .blocks tbody, .blocks tr, .blocks th, .blocks td { display: block; }
  .blocks tr { border-bottom: 1px solid var(--line); padding: 0.4rem 0; }
  .blocks td:empty { display: none; }
  .blocks td::before { content: attr(data-label) ": "; color: var(--quiet); }
}
.loop { display: block; min-width: 44rem; width: 100%; max-width: 64rem; }
.loop a:hover rect, .loop a:focus-visible rect { stroke-width: 2.5; } .loop a { cursor: pointer; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for text in lead %}
<p{{ ' class="quiet"' | safe if loop.index > 2 }}>{{ text }}</p>
{% endfor %}
<nav aria-label="Sections">
{% if view %}<a href="{{ view }}">Overview, episodes and pairs</a>{% endif %}
{% for each in tables %}<a href="#{{ each.id }}">{{ each.title }}, {{ each.table.unit }}</a>{% endfor %}
{% if tables and differences %}<a href="#differences">Differences</a>{% endif %}
{% for figure in figures %}<a href="#{{ figure.id }}">{{ figure.title }}</a>{% endfor %}
{% if verdict_file %}<a href="#verdicts">Verdicts</a>{% endif %}
{% if miniature %}<a href="#miniature">In the miniature</a>{% endif %}
{% for figure in further %}<a href="#{{ figure.id }}">{{ figure.title }}</a>{% endfor %}
{% if picture %}<a href="#the-loop">The loop</a>{% endif %}
{% if texts %}<a href="#numbers">In numbers</a>{% endif %}
<a href="#provenance">Provenance</a>
</nav>
{% for each in tables %}
{{ table_section(each, loop.first) }}
{% endfor %}
{% for figure in figures %}
{{ figure_section(figure) }}
{% endfor %}
{% if verdict_file %}
<h2 id="verdicts">Verdicts</h2>
<p class="quiet">Do the paper's claims agree with these results? {{ verdict_text }} Data: <a href="{{ verdict_file }}">verdicts.json</a>.</p>
{% if verdicts %}
{% call wide("Verdicts") %}
{{ verdict_rows(verdicts) }}
{% endcall %}
{% endif %}
{% endif %}
{% if miniature %}
<h2 id="miniature">In the miniature</h2>
<p class="quiet">{{ miniature_text }} Data: <a href="{{ verdict_file }}">verdicts.json</a>.</p>
{% call wide("In the miniature") %}
{{ verdict_rows(miniature) }}
{% endcall %}
{% endif %}
{% for figure in further %}
{{ figure_section(figure) }}
{% endfor %}
{% if picture %}
<section aria-labelledby="the-loop">
<h2 id="the-loop">The loop</h2>
<p class="quiet">Every box is a stage and links to its episodes, pairs or charts; an arrow is a file that one job read from another.{% if other_jobs %} Jobs not shown: {{ other_jobs }}.{% endif %}</p>
{% call wide("The loop") %}
{{ picture | safe }}
{% endcall %}
</section>
{% endif %}
{% if texts %}
<h2 id="numbers">In numbers</h2>
{% for text in texts %}
{{ folded_text(text) }}
{% endfor %}
{% endif %}
<h2 id="provenance">Provenance</h2>
<dl id="run">{% for name, value in run.items() if value %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% if provenance.results %}
<dl>{% for name, value in provenance.items() if value %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% endif %}
</body>
</html>
"""  # noqa: E501 (lines of HTML)
