"""The style of the report's page."""

from __future__ import annotations

STYLE = """
:root { --ink: #1f2630; --soft: #5b6472; --line: #e2e5ea; --rule: #b8bfc9; --tint: #f5f6f8; --accent: #0b5cad;
  --up: #0b5cad; --down: #a8430a; --warn: #a3261d; --warn-tint: #fdf1ef; }
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; color: var(--ink); background: #fff; -webkit-text-size-adjust: 100%;
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 48px 24px 96px; }
h1 { font-size: 34px; line-height: 1.15; margin: 0 0 10px; letter-spacing: -0.02em; overflow-wrap: anywhere; }
h2 { font-size: 21px; line-height: 1.3; margin: 64px 0 6px; letter-spacing: -0.01em; scroll-margin-top: 16px; }
h3 { font-size: 15px; margin: 28px 0 4px; }
p, ul { margin: 8px 0; max-width: 76ch; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
.eyebrow { margin: 0 0 8px; font-size: 13px; letter-spacing: 0.06em; text-transform: uppercase; color: var(--accent);
  font-weight: 600; }
.soft, figcaption, .interval, .method { color: var(--soft); }
.small { font-size: 14px; }
nav { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 14px; margin: 18px 0 0; padding: 10px 0;
  border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }

.lead { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 28px 44px;
  align-items: start; margin-top: 28px; }
.lead h2 { margin-top: 0; }
.findings { list-style: none; padding: 0; margin: 6px 0 0; }
.findings li { padding: 11px 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.findings li:first-child { font-size: 17px; }
.findings .flagged b { color: var(--warn); }
.notes { background: var(--tint); border-left: 3px solid var(--rule); padding: 8px 16px; margin: 20px 0;
  font-size: 14.5px; }
.notes p { margin: 5px 0; max-width: none; }

.wide { overflow-x: auto; margin: 14px 0; }
table { border-collapse: collapse; font-size: 13.5px; line-height: 1.45; font-variant-numeric: tabular-nums;
  min-width: 100%; }
th, td { text-align: right; padding: 9px 6px; border-bottom: 1px solid var(--line); white-space: nowrap;
  vertical-align: top; }
th { font-weight: 600; font-size: 12.5px; color: var(--soft); border-bottom-color: var(--rule);
  vertical-align: bottom; }
th:first-child, td:first-child, .text th, .text td { text-align: left; }
td:first-child { font-weight: 600; }
td.prose, th.prose { white-space: normal; min-width: 220px; text-align: left; }
table.narrow { min-width: min(100%, 420px); }
.runs th:first-child, .runs td:first-child { position: sticky; left: 0; background: #fff; padding-left: 0; z-index: 1; }
.runs tr.baseline td { background: var(--tint); } .runs tr.baseline td:first-child { box-shadow: -8px 0 0 var(--tint); }
.interval, .method { display: block; font-size: 10.5px; font-weight: 400; }
.up { color: var(--up); font-weight: 600; } .down { color: var(--down); font-weight: 600; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px;
  vertical-align: -0.02em; }
.badge { display: block; width: fit-content; margin-top: 4px; font-size: 10.5px; line-height: 1.4; font-weight: 600;
  padding: 1px 7px; border-radius: 9px; color: var(--warn); background: var(--warn-tint); border: 1px solid #ecc5c0;
  white-space: nowrap; }

.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 36px 44px;
  margin-top: 18px; }
figure { margin: 0; min-width: 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption { font-size: 13.5px; line-height: 1.5; margin-top: 8px; max-width: 76ch; }
.figures .wide { margin: 0; } .figures div > figure + figure { margin-top: 36px; }
figure.broad { grid-column: 1 / -1; } figure.broad img { min-width: 720px; }

.prompt { margin: 34px 0 10px; font-weight: 700; white-space: pre-wrap; overflow-wrap: anywhere; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 178px), 1fr)); gap: 14px; }
.answer { border: 1px solid var(--line); border-top: 3px solid; border-radius: 5px; padding: 9px 13px 11px;
  font-size: 14.5px; line-height: 1.5; min-width: 0; }
.answer header { display: flex; flex-wrap: wrap; gap: 0 9px; font-size: 12px;
  color: var(--soft); font-variant-numeric: tabular-nums; }
.answer header b { color: var(--ink); flex-basis: 100%; overflow-wrap: anywhere; }
.answer header span { white-space: nowrap; }
.answer p { margin: 7px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }

.histograms { display: flex; flex-wrap: wrap; gap: 12px 36px; } .histograms div { max-width: 100%; }
.histograms img { height: 250px; width: auto; display: block; }
.bar { display: block; height: 3px; border-radius: 2px; background: #a9c4de; margin-top: 3px; }

pre { background: var(--tint); padding: 14px 18px; overflow-x: auto; font-size: 13px; line-height: 1.5;
  border-radius: 5px; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--accent); font-size: 14.5px; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 6px 20px; font-size: 14px; }
dt { font-weight: 600; } dd { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
footer { margin-top: 64px; padding-top: 14px; border-top: 1px solid var(--line); font-size: 13px; color: var(--soft); }

@media (max-width: 600px) {
  main { padding: 28px 16px 64px; } h1 { font-size: 27px; } h2 { margin-top: 48px; }
  dl { grid-template-columns: minmax(0, 1fr); gap: 0; } dd { margin-bottom: 10px; }
  .runs td:first-child { min-width: 26vw; max-width: 44vw; white-space: normal; overflow-wrap: anywhere; }
}
@media print {
  body { font-size: 12px; } main { max-width: none; padding: 0; } nav { display: none; } .wide { overflow: visible; }
  table { font-size: 9.5px; } th, td { padding: 4px 3px; } th { font-size: 9px; white-space: normal; }
  .interval, .method { font-size: 7.5px; }
  figure, .answer, tr { break-inside: avoid; } h2, h3, .prompt { break-after: avoid; }
  figure.broad img { min-width: 0; }
}
"""
