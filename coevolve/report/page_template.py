"""The report page as a Jinja template, in a module so that an edit changes the code digest of the stage `page`."""

TEMPLATE = """\
{#- The report's page; coevolve/report/html.py gives the variables. -#}
{%- macro measured(each, row, column) -%}
{%- for cell in each.table.cells if (cell.row, cell.column) == (row, column) -%}
{%- if cell.estimate -%}
{% set address = link(cell) %}{% if address %}<a href="{{ address }}">{{ "%.1f" | format(cell.estimate.mean) }}</a>{% else %}{{ "%.1f" | format(cell.estimate.mean) }}{% endif %} <span class="quiet">[{{ "%.1f, %.1f" | format(cell.estimate.low, cell.estimate.high) }}]</span>
{%- else -%}
<span class="quiet">not run</span>
{%- endif -%}
{%- if cell.paper is not none -%}
<br><span class="quiet">paper {{ "%.1f" | format(cell.paper) }}
{%- for note in each.table.footnotes if (row, column) in note.cells %} <a href="#{{ each.id }}-{{ note.mark }}">{{ note.mark }}</a>{% endfor -%}
</span>
{%- endif -%}
{%- endfor -%}
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
.quiet { color: var(--quiet); font-size: 0.85rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.1rem 1.2rem; }
dt { color: var(--quiet); } dd { margin: 0; }
summary { cursor: pointer; padding: 0.2rem 0; font-weight: 600; }
pre { white-space: pre-wrap; }
.drawn { display: block; max-width: max(100%, 52rem); height: auto; margin-bottom: 1rem; }
.loop { display: block; min-width: 44rem; width: 100%; max-width: 64rem; }
.loop a:hover rect, .loop a:focus-visible rect { stroke-width: 2.5; } .loop a { cursor: pointer; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<dl id="run">{% for name, value in run.items() if value %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
<nav aria-label="Sections">
{% if view %}<a href="{{ view }}">Overview, episodes and pairs</a>{% endif %}
{% for each in tables %}<a href="#{{ each.id }}">{{ each.title }}, {{ each.table.unit }}</a>{% endfor %}
{% if picture %}<a href="#the-loop">The loop</a>{% endif %}
{% for figure in figures %}<a href="#{{ figure.id }}">{{ figure.title }}</a>{% endfor %}
{% if texts %}<a href="#numbers">In numbers</a>{% endif %}
{% if provenance.results %}<a href="#provenance">Provenance</a>{% endif %}
{% if verdict_file %}<a href="#verdicts">Verdicts</a>{% endif %}
{% if miniature %}<a href="#miniature">In the miniature</a>{% endif %}
</nav>
{% for each in tables %}
<h2 id="{{ each.id }}">{{ each.title }}, {{ each.table.unit }}</h2>
{% call wide(each.title) %}
<table class="cells">
<thead><tr><th scope="col"></th>{% for label in each.table.columns.values() %}<th scope="col">{{ label }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row, label in each.table.rows.items() %}
<tr><th scope="row">{{ label }}</th>{% for column in each.table.columns %}<td>{{ measured(each, row, column) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table>
{% endcall %}
<p class="quiet">{{ each.table.caption }} Data: <a href="{{ each.data }}">{{ each.data.rpartition("/")[2] }}</a>.
{% if loop.first and view %}
Every measured number links to its episodes in the <a href="{{ view }}">view</a> (<code>coevolve view</code> writes it); <code>coevolve why CELL</code> walks back further.
{% endif %}
</p>
{% if each.table.footnotes %}
<ul>
{% for note in each.table.footnotes %}
<li id="{{ each.id }}-{{ note.mark }}" class="quiet">Note {{ note.mark }}: {{ note.text }}</li>
{% endfor %}
</ul>
{% endif %}
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
{% for figure in figures %}
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
{% endfor %}
{% if texts %}
<h2 id="numbers">In numbers</h2>
{% for text in texts %}
{{ folded_text(text) }}
{% endfor %}
{% endif %}
{% if provenance.results %}
<h2 id="provenance">Provenance</h2>
<dl>{% for name, value in provenance.items() if value %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% endif %}
{% if verdict_file %}
<h2 id="verdicts">Verdicts</h2>
<p class="quiet">Whether a claim of the paper was reproduced. Data: <a href="{{ verdict_file }}">verdicts.json</a>.</p>
{% for outcome, group in verdicts.items() if outcome != "not run" %}
<details><summary>{{ outcome | capitalize }}: {{ group | length }}</summary>
{% call wide(outcome) %}
<table>
<thead><tr>{% for name in ("claim", "the paper", "measured", "p", "tasks", "seeds", "seeds needed", "remark") %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for verdict in group %}
<tr><th scope="row">{{ verdict.claim }}</th><td>{{ verdict.place }}: {{ verdict.says }}{{ " (unverified)" if verdict.unverified }}</td>
<td>{% if verdict.mean is not none %}{{ readable(verdict.mean) }} <span class="quiet">[{{ readable(verdict.low) }}, {{ readable(verdict.high) }}]</span>{% endif %}</td>
{% for name in ("p", "tasks", "seeds", "seeds_needed") %}<td>{{ readable(verdict[name]) if verdict[name] is not none }}</td>{% endfor %}<td>{{ verdict.text }}</td></tr>
{% endfor %}
</tbody></table>
{% endcall %}
</details>
{% endfor %}
{% if "not run" in verdicts %}
<p>Not run: {{ verdicts["not run"] | length }} claims.</p>
{% endif %}
{% endif %}
{% if miniature %}
<h2 id="miniature">In the miniature</h2>
<p class="quiet">{{ miniature_text }} Data: <a href="{{ verdict_file }}">verdicts.json</a>.</p>
{% call wide("In the miniature") %}
<table>
<thead><tr>{% for name in ("order", "the paper", "in the miniature", "measured", "tasks", "seeds", "seeds needed", "remark") %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for verdict in miniature %}
{% set order = verdict.miniature %}
<tr><th scope="row">{{ verdict.claim }}</th><td>{{ verdict.place }}: {{ verdict.says }}</td><td>{{ order_outcome(order) }}</td>
<td>{{ readable(order.mean) }} <span class="quiet">[{{ readable(order.low) }}, {{ readable(order.high) }}] {{ order.unit }}</span></td>
{% for name in ("tasks", "seeds", "seeds_needed") %}<td>{{ readable(order[name]) if order[name] is not none }}</td>{% endfor %}<td>{{ order.text }}</td></tr>
{% endfor %}
</tbody></table>
{% endcall %}
{% endif %}
</body>
</html>
"""  # noqa: E501 (lines of HTML)
