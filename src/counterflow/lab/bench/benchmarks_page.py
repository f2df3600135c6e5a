"""docs/benchmarks.md, and the table of results in README, from the files in benchmarks/.

A result file is what `counterflow bench NAME --json` printed. After a new one is put there:

    ./dev run python -m counterflow.lab.bench.benchmarks_page
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

from counterflow.lab.bench.markdown import described, markdown_table, scaled
from counterflow.lab.bench.readme_table import readme_table
from counterflow.lab.bench.result_tables import SECTIONS

Report = dict[str, Any]

ROOT = Path(__file__).parents[4]
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
SMOKE = "**Made with --smoke: sizes are tiny, and the figures say nothing.**"


def read_reports(folder: Path) -> list[Report]:
    """Return the reports in a folder, in the order of the files' names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def page(folder: Path) -> str:
    """Return docs/benchmarks.md: a section for each report, then how to read them."""
    before, after = ((folder / name).read_text() for name in ("introduction.md", "remarks.md"))
    return "\n".join([before, *map(section, read_reports(folder)), after])


def section(report: Report) -> str:
    """Return the heading of a report, with the command and the machine, and its tables."""
    name = report["benchmark"]
    command = f"counterflow bench {name}{' --smoke' if report['smoke'] else ''}"
    versions = ", ".join(f"{package} {version}" for package, version in report["versions"].items())
    date = datetime.fromisoformat(report["date"])
    load = f"load {report['machine']['load_before']:.1f} before"
    blocks = [
        f"## `{command}`, {date:%d %B %Y}",
        f"{described(report['machine'])}, {load}; {versions}.",
        *([SMOKE] if report["smoke"] else []),
        *([] if all(row["verified"] for row in report["results"]) else ["**Some output was wrong.**"]),
        *SECTIONS[name](report["results"]),
        *_ratios(report.get("ratios", {})),
        *report["remarks"],
    ]
    return "\n\n".join(blocks) + "\n"


def _ratios(ratios: dict[str, Any]) -> list[str]:
    rows = [[name.replace("_", " "), scaled(value)] for name, value in ratios.items() if _is_number(value)]
    return [markdown_table(["over all of it", ""], rows)] if rows else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def with_table(readme: str, table: str) -> str:
    """Return README with this table between its markers."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main(root: Path = ROOT) -> None:
    """Write the page, and README's table if there are results for it."""
    folder = root / "benchmarks"
    (root / "docs" / "benchmarks.md").write_text(page(folder))
    table = readme_table(read_reports(folder))
    if table is not None:
        readme = root / "README.md"
        readme.write_text(with_table(readme.read_text(), table))


if __name__ == "__main__":
    main()
