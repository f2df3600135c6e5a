"""The page that collects the figures: what agrees, what does not, which parts are measured and which simulated."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Any

from counterflow.lab.reproduce.figure import Figure, Source

MEANING: dict[Source, str] = {
    "measured": "run on this machine's cores",
    "simulated": "the same compiled code under a virtual clock, or the circuit clock by clock",
    "model": "a formula",
    "paper": "a number in the paper's text",
}
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #2a7d3f; --bad: #c0392b; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 58rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.2rem; margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
img { max-width: 100%; background: white; border-radius: 4px; }
table { border-collapse: collapse; margin: 1rem 0; font-size: .9rem; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .25rem .7rem; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; } th { background: var(--soft); }
.paper, .sources { opacity: .75; font-size: .9rem; } .good { color: var(--good); } .bad { color: var(--bad); }
ul.checks { list-style: none; padding-left: 0; } nav li { margin: .15rem 0; }
@media (prefers-color-scheme: dark) { :root { --good: #6fcf8a; --bad: #ff8a75; } }
"""


def write_page(figures: list[Figure], heading: dict[str, Any], folder: Path) -> Path:
    """Write `index.html` beside the figures; `heading` is that of a benchmark's report: machine, versions, date."""
    machine = heading["machine"]
    held = sum(figure.holds for figure in figures)
    small = "<p><strong>Made with --smoke: sizes are tiny, and the figures say nothing.</strong></p>"
    contents = "".join(
        f'<li>{_mark(figure.holds)} <a href="#{figure.name}">{escape(figure.title)}</a> ({figure.name})</li>'
        for figure in figures
    )
    sources = "".join(f"<li><strong>{name}</strong>: {escape(text)}</li>" for name, text in MEANING.items())
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The papers' figures, reproduced by Counterflow</title><style>{STYLE}</style></head><body>
<h1>The papers' figures, reproduced by Counterflow</h1>
<p>{escape(machine["cpu"])}, {machine["cores"]} cores (load {machine["load_before"]:.1f} before),
{heading["date"][:16]}.
The checks of {held} of {len(figures)} figures hold.</p>{small if heading["smoke"] else ""}
<p>Every curve says where it comes from:</p><ul>{sources}</ul>
<nav><h2>Contents</h2><ul class="checks">{contents}</ul></nav>
{"".join(map(_section, figures))}
</body></html>
"""
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _section(figure: Figure) -> str:
    name = figure.name
    image = (
        f'<p><a href="{name}.svg"><img src="{name}.png" alt="{escape(figure.title)}"></a></p>' if figure.curves else ""
    )
    checks = "".join(f"<li>{_mark(held)} {escape(what)}</li>" for what, held in figure.checks.items())
    return f"""<section><h2 id="{name}">{escape(figure.title)}</h2>
<p class="paper">{escape(figure.paper)} ({name})</p>
{image}<p>{escape(figure.verdict)}</p>
{_deviations(figure)}<ul class="checks">{checks}</ul>
{_rows(figure.rows)}<p class="sources">{_parts(figure)} <a href="{name}.json">JSON</a></p></section>
"""


def _deviations(figure: Figure) -> str:
    if not figure.deviations:
        return ""
    rows = [{"": d.what, "paper": d.paper, "ours": d.ours, "ours / paper": d.ratio} for d in figure.deviations]
    return _rows(rows)


def _parts(figure: Figure) -> str:
    """Return which curves are measured, simulated, a model's or the paper's."""
    found = []
    for source in figure.sources:
        names = dict.fromkeys(curve.name for curve in figure.curves if curve.source == source)
        found.append(f"{source.capitalize()}: {escape('; '.join(names))}.")
    return " ".join(found)


def _rows(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "<td></td>"
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return f'<td class="number">{f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"}</td>'


def _mark(held: bool) -> str:
    return '<span class="good">&#10003;</span>' if held else '<span class="bad">&#10007;</span>'
