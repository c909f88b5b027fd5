"""The report's page: a Jinja template and its style, in a module so that an edit is part of compare's code slice."""

from __future__ import annotations

STYLE = """
:root { --ink: #1f2630; --soft: #5b6472; --line: #e3e6eb; --tint: #f6f7f9; --accent: #0b5cad; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: #fff; -webkit-text-size-adjust: 100%;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 20px; margin: 48px 0 12px; padding-top: 16px; border-top: 1px solid var(--line); }
p, ul { margin: 8px 0; max-width: 75ch; }
.soft, figcaption, .interval { color: var(--soft); }
.findings { background: var(--tint); border-left: 3px solid var(--accent); padding: 10px 16px; margin: 20px 0; }
.findings p { margin: 4px 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 12px 0; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { text-align: right; padding: 8px 9px; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); border-bottom-color: #b8bfc9; }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
td:first-child { font-weight: 600; }
td.prose { white-space: normal; min-width: 200px; }
.runs th:first-child, .runs td:first-child { position: sticky; left: 0; background: #fff; }
.interval { display: block; font-size: 11.5px; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 28px; }
figure { margin: 0; min-width: 0; }
figure:last-child:nth-child(odd) { grid-column: 1 / -1; overflow-x: auto; }
figure:last-child:nth-child(odd) img { min-width: 640px; }
figure img { width: 100%; height: auto; display: block; } figcaption { font-size: 13.5px; margin-top: 4px; }
.prompt { margin: 28px 0 8px; font-weight: 600; white-space: pre-wrap; overflow-wrap: anywhere; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 190px), 1fr)); gap: 12px; }
.answer { border: 1px solid var(--line); border-top-width: 3px; border-radius: 4px; padding: 8px 12px;
  font-size: 14px; min-width: 0; }
.answer header { display: flex; justify-content: space-between; gap: 8px; font-size: 12.5px; color: var(--soft); }
.answer p { margin: 6px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { background: var(--tint); padding: 12px 16px; overflow-x: auto; font-size: 13px; border-radius: 4px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; font-size: 14px; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); }
@media (max-width: 600px) { main { padding: 24px 16px 56px; } h1 { font-size: 24px; } th, td { padding: 7px 9px; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; } }
@media print { .wide { overflow: visible; } figure, .answer { break-inside: avoid; } }
"""

PAGE = """{% set blank = "&ndash;" | safe %}
{% macro dot(name) %}<span class="dot" style="background: {{ colours[name] }}"></span>{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body><main>
<h1>{{ title }}</h1>
<p class="soft">{{ entries | length }} models on {{ entries[0].rows | length }} held-out prompts,
one completion each, with the same random numbers for every model.</p>
{% if findings %}
<div class="findings">{% for sentence in findings %}<p>{{ sentence }}</p>{% endfor %}</div>
{% endif %}

<h2>Runs</h2>
<div class="wide"><table class="runs">
<thead><tr><th>Run</th><th>Method</th>
{% for column in columns %}
<th title="{{ column.meaning }}">{{ column.title }}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for entry in entries %}
<tr><td>{{ dot(entry.name) }}{{ entry.name }}</td>
<td>{{ entry.method }}{% if entry.seed is not none %}<span class="interval">seed {{ entry.seed }}</span>{% endif %}</td>
{% for column in columns %}
{% if column.metric in entry.metrics %}
{% set shown = entry.metrics[column.metric] | number(column) %}
<td>{{ shown.value }}<span class="interval">{{ shown.interval }}</span></td>
{% else %}
<td class="soft">{{ blank }}</td>
{% endif %}
{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft">Below each value: its 95 % interval over prompts.</p>

<h2>Figures</h2>
<div class="figures">
{% for caption, image in figures %}
<figure><img src="{{ image }}" alt="{{ caption }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}
</div>

{% if samples %}
<h2>Samples side by side</h2>
<p class="soft">The first {{ samples | length }} of the held-out prompts in their fixed order, not picked.
At the right of each: its reward.</p>
{% for sample in samples %}
<p class="prompt">{{ sample.prompt }}</p>
<div class="answers">
{% for entry, row in sample.answers %}
<div class="answer" style="border-top-color: {{ colours[entry.name] }}">
<header><span>{{ entry.name }}</span>
<span>{{ "%.2f" | format(row.reward) }}{% if row.finish == "length" %} &middot; cut{% endif %}</span></header>
<p>{{ row.text | trim }}</p></div>
{% endfor %}
</div>
{% endfor %}
{% endif %}

{% if card %}
<h2>Data</h2>
<div class="wide"><table>
<thead><tr><th>Source</th><th>Form</th><th>Read</th><th>Train</th><th>Validation</th><th>Test</th><th>Dropped</th></tr></thead>
<tbody>
{% for source in card.sources %}
<tr><td>{{ source.name }}</td><td>{{ source.form }}</td><td>{{ source.read }}</td><td>{{ source.kept.train }}</td>
<td>{{ source.kept.validation }}</td><td>{{ source.kept.test }}</td>
<td class="prose">
{% for reason, count in source.dropped.items() %}
{{ count }} {{ reason }}{{ ", " if not loop.last }}
{% else %}
0
{% endfor %}
</td></tr>
{% endfor %}
</tbody></table></div>
<div class="wide"><table>
<thead><tr><th>Table</th><th>Train</th><th>Validation</th><th>Test</th></tr></thead>
<tbody>
{% for name, counts in card.tables.items() %}
<tr><td>{{ name }}</td><td>{{ counts.train }}</td><td>{{ counts.validation }}</td><td>{{ counts.test }}</td></tr>
{% endfor %}
</tbody></table></div>
<div class="figures">
{% for image in card.pictures %}
<figure><img src="{{ image }}" alt="Histogram of the data"></figure>
{% endfor %}
</div>
{% endif %}

{% if records %}
<h2>What ran where</h2>
<p class="soft">{{ total | duration }} of work in all.</p>
<div class="wide"><table class="text">
<thead><tr><th>Stage</th><th>Time</th><th>Device</th><th>Threads</th><th>Image</th><th>Host</th><th>Started</th><th>Attempts</th></tr></thead>
<tbody>
{% for record in records %}
<tr><td>{{ record.manifest.stage }}{% if record.manifest.run %} {{ record.manifest.run }}{% endif %}</td>
<td>{{ record.facts.seconds | default(0) | duration }}</td>
<td>{{ record.manifest.device or blank }}</td><td>{{ record.manifest.threads or blank }}</td>
<td>{{ record.manifest.image | default("host") | truncate(19, true) }}</td>
<td>{{ record.facts.host | default(blank) }}</td>
<td>{{ record.facts.started | default("") | moment }}</td><td>{{ record.facts.attempts | default(1) }}</td></tr>
{% endfor %}
</tbody></table></div>

<h2>Versions, and how to make this again</h2>
<dl>
<dt>Commit</dt><dd>{{ commits | join("; ") }}</dd>
<dt>Packages</dt><dd>
{% for name, version in packages.items() %}
{{ name }} {{ version }}{{ ", " if not loop.last }}
{% endfor %}
</dd>
</dl>
<pre>git checkout {{ commits[0].split(" ")[0] }}
dvc pull
snakemake --cores all{{ " --use-singularity" if containers }}</pre>
<p class="soft">The settings of each stage stand in its manifest.json; the whole configuration is an artifact of each
MLflow run.</p>
{% endif %}

<h2>How to read the numbers</h2>
<dl>{% for column in columns %}<dt>{{ column.title }}</dt><dd>{{ column.meaning }}</dd>{% endfor %}</dl>
<p class="soft">Intervals are percentile bootstrap over prompts unless said otherwise. The reward is the model that
the runs were trained to please: a gain in it is no proof that the text is better.</p>
</main></body></html>
"""
