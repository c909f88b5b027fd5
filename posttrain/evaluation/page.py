"""The report's page: a Jinja template, in a module so that an edit is part of compare's code slice."""

from __future__ import annotations

PAGE = """{% set blank = "&ndash;" | safe %}
{% macro dot(name) %}<span class="dot" style="background: {{ colours[name] }}"></span>{% endmacro %}
{% macro cell(found, column, error=none, group=none) %}
{% if found %}
{% set shown = found | number(column) %}
{% set even = {"eval/judge_gain": 0, "eval/reward_gain": 0, "eval/win_rate": 0.5}.get(column.metric) %}
{% set mark = "" if even is none else "up" if found.low > even else "down" if found.high < even else "" %}
<td><span class="{{ mark }}">{{ "+" if even == 0 and found.value > 0 }}{{ shown.value }}</span>
{% if error %} &plusmn; {{ "%.2f" | format(error.value) }}{% endif %}
<span class="interval">{{ shown.interval }}</span>
{% if group and column.metric in gains %}
<span class="interval">&gt; 0 in {{ group.above_zero(column.metric) }} of {{ group.members | length }}</span>
{% endif %}</td>
{% else %}
<td class="soft">{{ blank }}</td>
{% endif %}
{% endmacro %}
{% macro picture(name, kind="") %}
{% if name in figures %}
<figure class="{{ kind }}"><div class="wide"><img src="{{ figures[name].image }}"
alt="{{ figures[name].caption }}"></div><figcaption>{{ figures[name].caption }}</figcaption></figure>
{% endif %}
{% endmacro %}
{% macro heads(columns) %}
{% for column in columns %}<th title="{{ column.meaning }}">{{ column.title }}</th>{% endfor %}
{% endmacro %}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ style | safe }}</style>
</head>
<body><main>
<p class="eyebrow">Comparison of post-trained models</p>
<h1>{{ title }}</h1>
<p class="soft">{{ entries | length }} models on {{ prompts | join(" or ") }} held-out prompts, one completion each
{%- if comparison.experiments | length == 1 %}, with the same random numbers for every model{% endif %}
{%- if comparison.judges %}; judged by {{ comparison.judges | join(", ") }}, which no training stage sees
{%- endif %}.</p>
<nav>{% if comparison.groups %}<a href="#seeds">Over seeds</a>{% endif %}<a href="#runs">Runs</a>
<a href="#figures">Figures</a>
{% if samples %}<a href="#samples">Samples</a>{% endif %}
{% if cards or accuracies %}<a href="#data">Data and reward model</a>{% endif %}
{% if recipes %}<a href="#stages">What ran where</a><a href="#again">Make it again</a>{% endif %}
<a href="#reading">How to read it</a></nav>

<div class="lead">
<section><h2>Findings</h2>
<ul class="findings">
{% for finding in findings %}
<li{% if finding.flagged %} class="flagged"{% endif %}><b>{{ finding.head }}:</b> {{ finding.text | minus }}.</li>
{% endfor %}
{% for sentence in accuracies %}<li>{{ sentence }}</li>{% endfor %}
</ul>
<p class="soft small">In brackets: 95 % intervals. &ldquo;Better&rdquo; is said where the interval of the paired
difference lies above 0.</p>
</section>
{% if lead %}
<figure><img src="{{ lead.image }}" alt="{{ lead.caption }}"><figcaption>{{ lead.caption }}</figcaption></figure>
{% endif %}
</div>
{% if notes %}
<div class="notes">{% for sentence in notes %}<p>{{ sentence }}</p>{% endfor %}</div>
{% endif %}

{% if comparison.groups %}
<h2 id="seeds">Over seeds</h2>
<p>Runs of equal settings, trained with different seeds. The interval is Student&rsquo;s t over the seeds&rsquo;
values. It says how far another training could come out elsewhere; the interval over prompts says how far the figure of
one trained model could lie elsewhere on other prompts, and knows nothing of other trainings. With few seeds it is
wide.</p>
<div class="wide"><table class="runs">
<thead><tr><th>Group</th><th>Seeds</th>
{{ heads(columns) }}</tr></thead>
<tbody>
{% for group in comparison.groups %}
<tr><td>{{ dot(group.members[0].name) }}{{ group.name }}<span class="method">{{ group.method }}</span></td>
<td>{{ group.members | length }}</td>
{% for column in columns %}{{ cell(group.over_seeds(column.metric), column, group=group) }}{% endfor %}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small">&ldquo;&gt; 0 in&rdquo; counts the seeds whose own paired interval over prompts lies above 0.</p>
{% endif %}

<h2 id="runs">Runs</h2>
<div class="wide"><table class="runs">
<thead><tr><th>Run</th>{{ heads(columns) }}</tr></thead>
<tbody>
{% for entry in entries %}
{% set flags = comparison.flags.get(entry.name, []) %}
<tr{% if entry.is_baseline %} class="baseline"{% endif %}>
<td>{{ dot(entry.name) }}{{ entry.name }}
<span class="method">{{ "baseline" if entry.is_baseline else entry.method }}
{%- if entry.seed is not none %}, seed {{ entry.seed }}{% endif %}</span>
{% for flag in flags %}<span class="badge" title="{{ flag.name }}: {{ flag.sentence }}">{{ flag.label }}</span>
{% endfor %}</td>
{% for column in columns %}
{{ cell(entry.metrics.get(column.metric), column, entry.metrics.get(kl_error) if column.metric == "eval/kl") }}
{%- endfor %}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small">Below each value: its 95 % interval over prompts, for this one trained model. Blue: above SFT;
brown: below it. Red: what the run is flagged for.</p>

<h2 id="figures">Figures</h2>
<div class="figures">
{{ picture("reward_kl.png") }}
<div>{{ picture("win_rate.png") }}{{ picture("lengths.png") }}</div>
{{ picture("limits.png", "broad") }}
{{ picture("curves.png", "broad") }}
</div>

{% if samples %}
<h2 id="samples">Samples side by side</h2>
<p class="soft">The first {{ samples | length }} of the held-out prompts in their fixed order, not picked
{%- if one_of_each %}; of runs that differ by their seed, the first{% endif %}.</p>
{% for sample in samples %}
<p class="prompt">{{ sample.prompt | visible }}</p>
<div class="answers">
{% for entry, row in sample.answers %}
<div class="answer" style="border-top-color: {{ colours[entry.name] }}">
<header><b>{{ entry.name }}</b>
{% if row.judge is not none %}<span>judge {{ row.judge | fixed(2) }}</span>{% endif +%}
<span>reward {{ row.reward | fixed(2) }}</span>
<span>KL {{ row.kl | fixed(1) }}</span>
{% if row.finish == "length" %}<span>cut</span>{% endif %}
</header>
{% set text = row.text | visible | trim %}
{% if text %}<p>{{ text }}</p>{% else %}<p class="soft">(empty)</p>{% endif %}</div>
{% endfor %}
</div>
{% endfor %}
{% endif %}

{% if cards or accuracies %}
<h2 id="data">Data and reward model</h2>
{% for sentence in accuracies %}<p>{{ sentence }}</p>{% endfor %}
{% for card in cards %}
{% if cards | length > 1 %}<h3>{{ card.experiments | join(", ") }}</h3>{% endif %}
<div class="wide"><table>
<thead><tr><th>Source</th><th>Form</th><th>Read</th><th>Train</th><th>Validation</th><th>Test</th>
<th class="prose">Dropped</th></tr></thead>
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
<div class="wide"><table class="narrow">
<thead><tr><th>Table</th><th>Train</th><th>Validation</th><th>Test</th></tr></thead>
<tbody>
{% for name, counts in card.tables.items() %}
<tr><td>{{ name }}</td><td>{{ counts.train }}</td><td>{{ counts.validation }}</td><td>{{ counts.test }}</td></tr>
{% endfor %}
</tbody></table></div>
<div class="histograms">
{% for image in card.pictures %}<div class="wide"><img src="{{ image }}" alt="Histogram of the data"></div>{% endfor %}
</div>
{% endfor %}
{% endif %}

{% if recipes %}
<h2 id="stages">What ran where, and how long</h2>
{% for experiment in comparison.experiments if experiment.records %}
{% if recipes | length > 1 %}<h3>{{ experiment.name }}</h3>{% endif %}
<p class="soft small">{{ experiment.records | map(attribute="facts.seconds") | sum | duration }}
{% if experiment.records | selectattr("facts.attempts", "defined") | selectattr("facts.attempts", "gt", 1) | list %}
without earlier attempts: where a stage had more than one, its time (*) is the last attempt&rsquo;s alone.
{%- else %} of work in all.{% endif %}</p>
<div class="wide"><table class="text">
<thead><tr><th>Stage</th><th>Started</th><th>Time</th><th>Image</th><th>Host</th><th>Device</th><th>Threads</th>
<th>Attempts</th><th>Resumed at step</th></tr></thead>
<tbody>
{% for record in experiment.records %}
<tr><td>{{ record.manifest.stage }}{% if record.manifest.run %} {{ record.manifest.run }}{% endif %}</td>
<td>{{ record.facts.started | default("") | moment }}</td>
{% set seconds = record.facts.seconds | default(0) %}
<td>{{ seconds | duration }}{{ "*" if record.facts.attempts | default(1) > 1 }}
<span class="bar" style="width: {{ "%.1f" | format(100 * seconds / longest) }}%"></span></td>
<td>{{ (record.manifest.image or "host") | truncate(15, true) }}</td><td>{{ record.facts.host or blank }}</td>
<td>{{ record.manifest.device or blank }}</td><td>{{ record.manifest.threads or blank }}</td>
<td>{{ record.facts.attempts | default(1) }}</td>
<td>{{ record.facts.resumed_at | default([]) | join(", ") or blank }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endfor %}

<h2 id="again">Make it again</h2>
{% for recipe in recipes %}
{% if recipes | length > 1 %}<h3>{{ recipe.name }}</h3>{% endif %}
<pre>{{ recipe.commands }}</pre>
{% if recipe.dirty %}
<p><b>The working tree had changes that were not committed</b>: the commit alone does not give the code that ran. The
digest of each stage&rsquo;s code stands in its manifest.json.</p>
{% endif %}
{% if recipe.config %}
<details><summary>The configuration, to be saved under the name in the last command</summary>
<pre>{{ recipe.config }}</pre>
<p class="soft small">A key that is not shown has its default at that commit.</p></details>
{% else %}
<p class="soft small">The whole configuration is an artifact of each MLflow run, and its parts stand in each stage's
manifest.json.</p>
{% endif %}
<dl>
<dt>{{ "Commits" if recipe.commits | length > 1 else "Commit" }}</dt><dd>{{ recipe.commits | join(", ") }}
{%- if recipe.dirty %} with uncommitted changes{% endif %}</dd>
<dt>Image</dt><dd>{{ recipe.images | join(", ") }}
{%- if recipe.unknown_images %}. {{ recipe.unknown_images | join(", ") }} is of another recipe than this
version&rsquo;s: the checkout of the commit gives it, and resources.image its name{% endif %}</dd>
{% if recipe.files %}
<dt>Also needed</dt><dd>{{ recipe.files | join(", ") }}, which the configuration names and does not hold</dd>
{% endif %}
<dt>Packages</dt><dd>
{% for name, version in recipe.packages.items() %}
{{ name }} {{ version }},
{% endfor %}
all others as in envs/*.lock at that commit</dd>
</dl>
{% endfor %}
{% endif %}

<h2 id="reading">How to read the numbers</h2>
<dl>{% for column in columns %}<dt>{{ column.title }}</dt><dd>{{ column.meaning }}</dd>{% endfor %}</dl>
<p class="soft small">Intervals are percentile bootstrap over prompts unless said otherwise; those of differences are
paired by prompt. The reward is the model that the runs were trained to please: a gain in it is no proof that the text
is better. A flag is a reason to read the samples, not a verdict.</p>
<footer>Also beside this page: summary.csv, seeds.csv and each figure as a PNG file.</footer>
</main></body></html>
"""
