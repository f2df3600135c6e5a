"""docs/benchmarks.md and README's table are what the result files say; every benchmark's rows can be shown."""

from __future__ import annotations

import copy
import json

import pytest

from counterflow.lab.bench.benchmarks_page import BEGIN, END, ROOT, main, page, read_reports, section, with_table
from counterflow.lab.bench.readme_table import readme_table

MACHINE = dict(cpu="a processor", cores=2, memory_bytes=24 << 30, avx2=True, system="Linux", load_before=0.25)
HEADING = dict(
    smoke=False,
    date="2026-11-17T12:30:00+00:00",
    machine=MACHINE,
    versions={"python": "3.11.9", "numba": "0.68"},
    remarks=[],
)


def kernel_rows():
    for window in (100_000, 1_000_000):
        for threads in (1, 2):
            shape = dict(window_rows=window, threads=threads, matches_per_probe=0.4, compile_s=1.25, verified=True)
            scanned = dict(shape, through="store", bytes_per_row=8.0, repeats=5, cores_used=1.0)
            yield dict(
                scanned, path="limit_avx2", through="c", batch_rows=1024, comparisons_per_s=1e10, ratio_to_limit=1.0
            )
            for batch in (1, 1024, 8192):
                for path, rate in (("scan", 1.1e10), ("prefilter", 2.5e10)):
                    yield dict(scanned, path=path, batch_rows=batch, comparisons_per_s=rate, ratio_to_limit=rate / 1e10)
                for path, rate in (("hash", 2.97e7), ("band", 5.6e6)):
                    for through in ("stream", "store"):
                        yield dict(
                            shape, path=path, through=through, batch_rows=batch, tuples_per_s=rate / (1 + (batch == 1))
                        )
    finite = dict(
        path="finite_join", rows_per_side=500_000, window_rows=100_000, threads=2, repeats=5, pairs=9000, verified=True
    )
    for through, seconds in (("counterflow", 0.19), ("duckdb_grid", 0.26), ("duckdb_plain", 10.5)):
        yield dict(
            finite,
            through=through,
            seconds=seconds,
            cpu_seconds=2 * seconds,
            ratio_to_counterflow=seconds / 0.19,
            compile_s=0.0,
        )
    robust = dict(path="robust", window_rows=20_000, batch_rows=256, threads=1, matches_per_probe=9.5, verified=True)
    yield dict(robust, case="hot_key", through="store", tuples_per_s=2.5e6, pairs_per_s=1e9)
    yield dict(
        robust, case="probe_cost_hash", through="index", probe_ns=61.0, small_window_probe_ns=30.0, probe_cost_ratio=2.0
    )


def ages(p50, p99):
    return dict(latency_us_p50=p50, latency_us_p90=p99 / 2, latency_us_p99=p99, latency_us_max=2 * p99)


def local_rows():
    shape = dict(workers=2, window_rows=1_000_000, seconds=0.5, stolen=0.0, hop_ns=60.0, pairs=10, verified=True)
    scan = dict(
        shape, path="scan", batch_rows=128, ordered=True, ordered_by="collector", tuples_per_s=1e4, spread=0.001
    )
    for name in ("kang", "handshake", "llhj", "dpjoin"):
        layout = {"layout": "1x2"} if name == "dpjoin" else {}
        yield dict(scan, case="scan", algorithm=name, comparisons_per_s=2.01e10, ratio_to_kernel=1.02, **layout)
    yield dict(scan, case="merge", algorithm="handshake", path="merge", ratio_to_scan=1.33)
    for rates in ("constant", "sinusoidal"):
        yield dict(scan, case="skew", algorithm="scalejoin", rates=rates, streams=6, comparisons_per_s=2e10)
    for kind in ("hash", "band"):
        indexed = dict(
            shape, path=kind, ordered=True, ordered_by="collector", buffer_rows_max=7, punctuation_rows_min=9
        )
        for name in ("kang", "llhj", "dpjoin"):
            for batch in (64, 1024):
                yield dict(
                    indexed,
                    case="index",
                    algorithm=name,
                    batch_rows=batch,
                    tuples_per_s=batch * 1e4,
                    ordering_costs=0.04,
                )
        of_all = dict(latency_us_p50_of_all=12.0, latency_us_p99_of_all=3700.0)
        yield dict(
            indexed,
            case="latency",
            algorithm="llhj",
            batch_rows=1024,
            rate_tuples_per_s=6e6,
            tuples_per_s=6e6,
            **ages(11.0, 500.0),
            **of_all,
        )
    yield dict(
        shape,
        case="latency",
        algorithm="handshake",
        path="band",
        batch_rows=64,
        ordered=False,
        rate_tuples_per_s=2e5,
        tuples_per_s=2e5,
        window_s=1.0,
        **ages(2.5e5, 4.9e5),
    )


def stream_rows():
    for kind in ("hash", "band"):
        for name, rate in (("auto", 3.4e6), ("llhj", 2.2e6)):
            row = dict(
                algorithm=name,
                path=kind,
                workers=2,
                window_rows=100_000,
                batch_rows=1024,
                ordered=True,
                seconds=0.3,
                tuples_per_s=rate,
                stolen=0.0,
                pairs=10,
                verified=True,
            )
            yield dict(row, case="rate", repeats=5, share_of_bare=0.25)
            yield dict(row, case="rate", repeats=5, share_of_bare=0.5, batch_rows=8192, tuples_per_s=2 * rate)
            yield dict(row, case="half the rate", rate_tuples_per_s=rate / 2, **ages(5600.0, 38_000.0))
            yield dict(row, case="gentle rate", batch_rows=64, rate_tuples_per_s=1e5, **ages(1000.0, 3800.0))
        yield dict(row, case="pushed", algorithm="auto", batch_rows=1, rate_tuples_per_s=1000, **ages(150.0, 2000.0))
    for sources in (1, 8):
        yield dict(row, case="sources", algorithm="scalejoin", path="hash", sources=sources, tuples_per_s=2e6 + sources)
    held = dict(rows=50_000_000, resident_bytes_settled=300 << 20, resident_bytes_max=310 << 20, growth_bytes=10 << 20)
    yield dict(row, case="memory", algorithm="auto", path="hash", **held)


def spark_rows():
    shape = dict(
        batch_rows=50_000,
        domain=10_000,
        partitions=2,
        state_store="RocksDB",
        pairs=10,
        matches_per_row=0.5,
        verified=True,
    )
    yield dict(
        shape,
        case="memory",
        through="counterflow",
        window_rows=20_000,
        batches=500,
        batch_ms_p50=90.0,
        worker_bytes_first=614 << 20,
        worker_bytes_last=617 << 20,
        growth_bytes=3 << 20,
    )
    cases = (
        ("band", "counterflow", 100_000, 609.0),
        ("band", "counterflow", 5_000_000, 646.0),
        ("band", "identity", 100_000, 705.0),
        ("band", "spark_grid", 100_000, 2600.0),
        ("band", "spark_bucket_explode", 100_000, 18_000.0),
        ("equi", "counterflow", 100_000, 386.0),
        ("equi", "counterflow", 5_000_000, 478.0),
        ("equi", "spark_native", 100_000, 893.0),
    )
    for case, through, window, ms in cases:
        layout = {"layout": "1x2" if case == "band" else "hash:2"} if through == "counterflow" else {}
        measured = dict(
            runs=2, batches=12, batch_ms_p50=ms, batch_ms_p90=1.2 * ms, delay_ms_p50=ms, tuples_per_s=1e8 / ms
        )
        yield dict(shape, case=case, through=through, window_rows=window, **layout, **measured)


def gate_rows():
    for sources in (1, 8):
        for readers in (1, 2):
            for promise_rows in (1, 64):
                rate = promise_rows * sources * 1e5
                yield dict(
                    sources=sources,
                    readers=readers,
                    promise_rows=promise_rows,
                    inserts_per_s=rate,
                    gets_per_s=readers * rate,
                    verified=True,
                )


def predicate_rows():
    shape = dict(where="l.k = r.k OR l.s = r.s", batch_rows=8192, repeats=3, verified=True)
    for window in (20_000, 2_000_000):
        yield dict(
            shape, case="stream", predicate="one of two", window_rows=window, path="hash on l.k; or hash on l.s",
            tuples_per_s=1.25e6, candidates_per_row=2.5, candidates_per_pair=1.2, matches_per_row=2.0,
            scanned_per_row=0.0, seconds=0.1,
        )  # fmt: skip
    finite = {"one of two": ("counterflow", "duckdb"), "prefix": ("counterflow",)}
    finite |= {"haversine": ("counterflow",), "overlap": ("counterflow", "duckdb")}
    for name, systems in finite.items():
        for system in systems:
            yield dict(
                shape, case="finite", predicate=name, rows=200_000, window_rows=20_000, pairs=4_000, system=system,
                seconds=0.2, cpu_s=0.3 if system == "counterflow" else 0.6,
            )  # fmt: skip


ROWS = {
    "gate": gate_rows,
    "kernels": kernel_rows,
    "local": local_rows,
    "predicates": predicate_rows,
    "streams": stream_rows,
    "spark": spark_rows,
}
RATIOS = {"ordering_costs": 0.04, "best_equi_tuples_per_s": 2.14e7, "warm_2m_to_100k": None, "verified": True}


def report(name):
    ratios = {} if name == "kernels" else {"ratios": RATIOS}
    return {"benchmark": name, **copy.deepcopy(HEADING), **ratios, "results": list(ROWS[name]())}


@pytest.fixture
def reports():
    return [report(name) for name in ROWS]


SHOWN = {
    "gate": [
        "M inserts/s / M gets/s of all threads together, with a promise for every tuple, as in the paper:",
        "| | 1 reader | 2 readers |",
        "| 1 source | 0.1 / 0.1 | 0.1 / 0.2 |",
        "| 8 sources | 51.2 / 51.2 | 51.2 / 102.4 |",
    ],
    "kernels": [
        "| scan, G comparisons/s (share of the C limit), batches of 1,024 | 11.0 (1.10) | 11.0 (1.10) |",
        "| hash index, M tuples/s, batches of 1,024 / of 1 | 29.7 / 14.8 | 29.7 / 14.8 |",
        "| DuckDB, with the plain predicate | 10.500 s | 21.00 s | 9,000 |",
        "| hot key | 20,000 | 2.5 M tuples/s | 9.5 |",
        "| probe cost hash | 20,000 | 61 ns a probe | 9.5 |",
        "scan 1.25 s",
    ],
    "local": [
        "| | kang | handshake | llhj | dpjoin 1x2 |",
        "| 20.1 (1.02) | 20.1 (1.02) | 20.1 (1.02) | 20.1 (1.02) |",
        "| equi-join with an index, M tuples/s, batches of 64 / 1,024 | 0.6 / 10.2 | | 0.6 / 10.2 | 0.6 / 10.2 |",
        "| latency of the equi-join at half of that rate, p50 / p99 / max, ms | | | 0.011 / 0.5 / 1.0 | |",
        "| p99 of the benchmark join over all results of all runs, ms | | | 3.7 | |",
        "1.33 times",
        "constant 0.001, sinusoidal 0.001",
        "p99 is 0.49 of the window",
        "| ordering costs | 0.04 |",
        "| best equi tuples per s | 21.4 M |",
    ],
    "streams": [
        "| | auto | llhj |",
        "| benchmark join, M tuples/s, batches of 1,024 rows | 3.4 | 2.2 |",
        "| its latency at half of that, p50 / p99, ms | 5.6 / 38 | 5.6 / 38 |",
        "| at 100,000 tuples/s, batches of 64 rows | 1.0 / 3.8 | 1.0 / 3.8 |",
        "| benchmark join, windows of 100,000 rows, batches of 8,192 | 6.80 (0.50) | 4.40 (0.50) |",
        "carried to the gate by a thread for each core; batches of 1,024, windows of 100,000 rows:",
        "| sources a side | 1 | 8 |",
        "| 1,000 rows/s | 0.15 / 2.0 | 0.15 / 2.0 |",
        "while 50,000,000 rows go through windows of 100,000, one match a row, in order, MiB:",
        "| the most from then on | 310 |",
    ],
    "predicates": [
        "batches of 8,192, windows of 20,000 / 2,000,000 rows a side:",
        "| one of two | `l.k = r.k OR l.s = r.s` | 1,250 / 1,250 | 2.5 / 2.5 | 2.0 / 2.0 |",
        "CPU seconds; DuckDB has two minutes:",
        "| one of two | 4,000 | 0.30 | 0.60 | 0.50 |",
        "| prefix | 4,000 | 0.30 | did not end | |",
    ],
    "spark": [
        "| benchmark join, layout 1x2 | 100,000 / 5,000,000 | 609 / 646 ms | 731 / 775 ms | 164,204 / 154,799 |",
        "| an operator that only passes the rows on | | 705 ms |",
        "| Spark's own equi-join | 100,000 | 893 ms |",
        "over 500 micro-batches: from 614 to 617 MiB",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_a_section_says_what_was_measured_on_what(name):
    text = section(report(name))
    assert text.startswith(f"## `counterflow bench {name}`, 17 November 2026\n")
    assert "a processor, 2 cores, 24 GiB, load 0.2 before; python 3.11.9, numba 0.68." in text
    assert [line for line in SHOWN[name] if line not in text] == []
    assert "wrong" not in text and "--smoke" not in text and "None" not in text


@pytest.mark.parametrize("name", ROWS)
def test_smoke_results_and_wrong_ones_are_marked(name):
    smoke = report(name) | {"smoke": True}
    smoke["results"][0]["verified"] = False
    text = section(smoke)
    assert text.startswith(f"## `counterflow bench {name} --smoke`") and "the figures say nothing" in text
    assert "Some output was wrong" in text


def test_rows_that_a_machine_cannot_measure_are_left_out():
    kernels = report("kernels")  # without a C compiler and DuckDB
    kernels["results"] = [
        r for r in kernels["results"] if r["path"] != "limit_avx2" and not r["through"].startswith("duckdb")
    ]
    for row in kernels["results"]:
        row.pop("ratio_to_limit", None)
    assert "| scan, G comparisons/s (share of the C limit), batches of 1,024 | 11.0 | 11.0 |" in section(kernels)
    spark = report("spark")  # without /proc/*/smaps_rollup
    spark["results"] = [r for r in spark["results"] if r["case"] != "memory"]
    assert "Memory" not in section(spark)


def test_a_chosen_configuration():
    row = dict(
        case="chosen",
        algorithm="llhj",
        path="band",
        workers=3,
        window_rows=10_000,
        batch_rows=64,
        tuples_per_s=2.5e6,
        share=0.3,
        verified=True,
        **ages(10.0, 900.0),
    )
    text = section(report("local") | {"results": [row]})
    assert "| llhj | benchmark join | 3 | 10,000 | 64 | 2.50 | 30% of that | 0.01 / 0.9 / 1.8 |" in text


def test_readme_table(reports):
    lines = readme_table(reports).splitlines()
    assert lines[0] == "| join | `cf.window_join` | beside it |"
    assert lines[2:11] == [
        "| tables of 500,000 rows, two bands | 0.19 s | DuckDB 10 s, with a grid key by hand 0.26 s |",
        "| tables of 200,000 rows, 10 km on the globe | 0.2 s | DuckDB more than two minutes |",
        "| tables of 200,000 rows, overlaps of intervals | 0.2 s | DuckDB 0.2 s |",
        "| streams in process, equality | 3.4 M rows/s | |",
        "| streams in process, two bands | 3.4 M rows/s | |",
        "| the same at 100,000 rows/s | p50 1.0 ms, p99 3.8 ms | |",
        "| rows pushed one by one, 1,000/s | p50 0.15 ms, p99 2.0 ms | |",
        "| Spark, two bands | 0.61 (0.65) s | with a grid key by hand 2.6 s, with bucket and explode 18 s |",
        "| Spark, equality | 0.39 (0.48) s | Spark's own 0.89 s |",
    ]
    assert "Windows of 100,000 rows a side (in brackets: 5,000,000)." in lines[-1]
    assert "`kernels`, `streams`, `spark`, `predicates` on a processor, 2 cores, 24 GiB, November 2026." in lines[-1]


def test_readme_table_takes_the_newest_whole_results(reports):
    newer = report("streams") | {"date": "2026-12-01T00:00:00+00:00", "machine": {**MACHINE, "cpu": "another"}}
    smoke = report("streams") | {"date": "2027-01-01T00:00:00+00:00", "smoke": True, "results": []}
    table = readme_table([newer, smoke, *reports])
    assert "`kernels`, `spark`, `predicates` on a processor" in table and "`streams` on another" in table
    assert readme_table(reports[:-1]) is None


def test_everything_is_written(tmp_path, reports):
    for name in ("benchmarks", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "benchmarks" / "introduction.md").write_text("# Benchmarks\n")
    (tmp_path / "benchmarks" / "remarks.md").write_text("## Before\n")
    for each in reports:
        (tmp_path / "benchmarks" / f"{each['benchmark']}.json").write_text(json.dumps(each))
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    main(tmp_path)
    written = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert written.startswith("# Benchmarks\n\n## `counterflow bench gate`") and written.endswith("\n## Before\n")
    assert (tmp_path / "README.md").read_text() == f"before\n{BEGIN}\n{readme_table(reports)}\n{END}\nafter\n"


def test_the_committed_page_is_what_the_files_say():
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page(ROOT / "benchmarks")


def test_the_committed_table_is_what_the_files_say():
    readme = (ROOT / "README.md").read_text()
    assert readme.count(BEGIN) == readme.count(END) == 1
    table = readme_table(read_reports(ROOT / "benchmarks"))
    if table is not None:
        assert with_table(readme, table) == readme


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 900
