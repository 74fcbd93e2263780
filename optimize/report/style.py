"""The page's style sheet: light and dark by the reader's choice, colours that the colour-blind
tell apart (blue for what passes, vermilion for what does not; after Okabe and Ito)."""

from __future__ import annotations

from optimize.report.markup import Markup

STYLE = Markup("""
:root {
  --page: #fbfbfa; --card: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #dfe2e6;
  --grid: #e9ebee; --chosen: #0a5fb4; --passes: #3d8bcf; --bad: #b8470b; --kept: #d9791a;
  --tint: #eaf2fb; --tint-bad: #fcefe6; --ghost: #c5cad1;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111418; --card: #181c22; --ink: #e8eaed; --soft: #a0a9b4; --line: #2e343c;
    --grid: #262b32; --chosen: #79b8ff; --passes: #5a9bd8; --bad: #f2915a; --kept: #f0a24e;
    --tint: #14273d; --tint-bad: #3a2114; --ghost: #434b55;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 3rem; max-width: 66rem;
  background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
    "DejaVu Sans", sans-serif;
}
h1, h2, h3, p, dl, dd, figure { margin: 0; }
h1 { font-size: 2.1rem; line-height: 1.2; letter-spacing: -0.02em; margin: 0.15rem 0 0.9rem; }
h1.bad { color: var(--bad); }
h2 { font-size: 1.15rem; letter-spacing: -0.005em; margin-bottom: 0.35rem; }
h3 { font-size: 1rem; display: flex; gap: 0.6rem; align-items: baseline; flex-wrap: wrap; }
.over { color: var(--soft); font-size: 0.95rem; overflow-wrap: anywhere; }
.lead { max-width: 46rem; }
.lead + .lead { margin-top: 0.3rem; }
.hint { color: var(--soft); font-size: 0.9rem; max-width: 46rem; overflow-wrap: anywhere; }
section {
  margin-top: 1.5rem; padding: 1.25rem 1.4rem 1.35rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; break-inside: avoid;
}
section > .hint + *, section > h2 + .wide, section > h2 + .reasons { margin-top: 0.9rem; }
figure + .wide { margin-top: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: 0.8rem;
  margin-top: 1.4rem; }
.figures > div { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 0.8rem 1rem 0.85rem; }
.figures dt { color: var(--soft); font-size: 0.85rem; overflow-wrap: anywhere; }
.figures b { display: block; font-size: 1.45rem; font-weight: 600; line-height: 1.3;
  letter-spacing: -0.01em; }
.figures span { color: var(--soft); font-size: 0.85rem; }
.wide { overflow-x: auto; }
.wide:focus-visible { outline: 2px solid var(--chosen); outline-offset: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 0.86rem; }
caption { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
figure + .wide caption { position: static; width: auto; height: auto; clip-path: none;
  text-align: left; color: var(--soft); padding-bottom: 0.3rem; }
th, td { text-align: left; padding: 0.45rem 0.8rem 0.45rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; vertical-align: baseline; }
thead th { color: var(--soft); font-weight: 500; }
tbody th { font-weight: 600; }
tbody tr:last-child > * { border-bottom: 0; }
th:last-child, td:last-child { padding-right: 0.4rem; }
tr > :first-child { padding-left: 0.4rem; }
td small { display: block; color: var(--soft); font-size: 0.78rem; line-height: 1.35; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.chosen > * { background: var(--tint); }
.pill { display: inline-block; font-size: 0.8rem; font-weight: 500; line-height: 1.5;
  padding: 0 0.55em; border-radius: 1em; border: 1px solid currentcolor; white-space: nowrap; }
.pill.chosen { background: var(--chosen); border-color: var(--chosen); color: var(--card); }
.pill.passes { color: var(--chosen); }
.pill.refused, .pill.failed { color: var(--bad); }
.reasons { display: grid; gap: 0.6rem; }
article { border-left: 3px solid var(--ghost); padding: 0.1rem 0 0.1rem 0.9rem;
  overflow-wrap: anywhere; }
article.chosen { border-color: var(--chosen); }
article.passes { border-color: var(--passes); }
article.refused, article.failed { border-color: var(--bad); }
.conditions { display: grid; grid-template-columns: minmax(8rem, auto) 1fr; gap: 0.3rem 1.2rem;
  font-size: 0.9rem; margin-top: 0.6rem; }
.conditions dt { color: var(--soft); }
.conditions dd { overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
footer { color: var(--soft); font-size: 0.85rem; margin-top: 1.4rem; max-width: 46rem; }
figure { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 40rem; height: auto; font-size: 12.5px;
  font-variant-numeric: tabular-nums; }
svg text { fill: var(--ink); }
svg .tick, svg .note { fill: var(--soft); }
svg .axis { font-size: 13px; font-weight: 600; }
svg .grid { stroke: var(--grid); }
svg .source { stroke: var(--soft); stroke-dasharray: 1 3; }
svg .limit { stroke: var(--bad); stroke-dasharray: 5 4; }
svg .front { fill: none; stroke: var(--ghost); stroke-width: 2.5; stroke-linejoin: round; }
svg .leader { stroke: var(--ghost); }
svg .name { font-weight: 600; }
svg .name.chosen { fill: var(--chosen); }
svg .mark { stroke-width: 2; fill: none; }
svg .mark.chosen { fill: var(--chosen); stroke: var(--chosen); }
svg .mark.passes { fill: var(--passes); stroke: var(--passes); }
svg .mark.refused, svg .mark.failed { stroke: var(--bad); stroke-linecap: round; }
svg .ring { fill: none; stroke: var(--chosen); stroke-width: 1.5; }
svg .bar { fill: none; stroke: var(--passes); stroke-width: 1.5; }
svg .bar.chosen { stroke: var(--chosen); }
svg .bar.refused { stroke: var(--bad); }
svg .other { fill: none; stroke: var(--ghost); }
svg .line { fill: none; stroke: var(--passes); stroke-width: 2; }
svg .line.chosen { stroke: var(--chosen); }
svg .line.refused { stroke: var(--bad); }
svg .dot { fill: var(--passes); }
svg .dot.chosen { fill: var(--chosen); }
svg .dot.refused { fill: var(--bad); }
svg .band { fill: var(--passes); opacity: 0.28; }
svg .layer { font-size: 12px; }
svg .cost.quantized { fill: var(--passes); }
svg .cost.kept { fill: var(--kept); }
svg .note.kept { fill: var(--ink); font-weight: 600; }
@media print { body { padding: 0; } section { border-color: #ccc; } }
""")
