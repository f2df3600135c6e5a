"""The log of a file sink, which gets an entry that Spark did not write: of the form and at the place that it reads."""

from __future__ import annotations

import pytest

from counterflow.engines.spark.session.spark_logs import FileSinkLog, Folder, compact_interval_of
from counterflow.errors import OptionError


@pytest.mark.parametrize(
    ("default", "compacted", "interval"),
    [(10, [], 10), (10, [9], 10), (10, [2], 3), (10, [9, 19], 10), (3, [9, 19], 10), (5, [19], 5), (6, [20], 7)],
)
def test_how_often_entries_become_one(default, compacted, interval):
    """As Spark's CompactibleFileStreamLog decides it: the setting counts until the first such entry is there."""
    assert compact_interval_of(default, compacted) == interval


def log_of(folder, *entries: str) -> FileSinkLog:
    (folder / "_spark_metadata").mkdir()
    for name in entries:
        lines = ["v1", *(f"file of {n}" for n in range(int(name.split(".")[0]) + 1) if name.endswith("t"))]
        text = "\n".join(lines if name.endswith("t") else ["v1", f"file of {name}"])
        (folder / "_spark_metadata" / name).write_text(text)
    return FileSinkLog(str(folder), 3)


def test_an_entry_without_files(tmp_path):
    log = log_of(tmp_path, "0", "1", "2.compact", "3")
    log.check_is_of(3)
    assert log.lacks(4) and not log.lacks(3)
    log.add(4)
    assert not log.lacks(4) and (tmp_path / "_spark_metadata" / "4").read_text() == "v1"
    log.add(5)
    files = [f"file of {n}" for n in (0, 1, 2, 3)]
    assert (tmp_path / "_spark_metadata" / "5.compact").read_text().splitlines() == ["v1", *files]
    assert sorted(path.name for path in tmp_path.glob("_spark_metadata/.*")) == []


def test_the_first_entry_of_all_before(tmp_path):
    log_of(tmp_path, "0", "1").add(2)
    assert (tmp_path / "_spark_metadata" / "2.compact").read_text() == "v1\nfile of 0\nfile of 1"


def test_a_folder_is_named_in_any_way(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x").write_text("text")
    for name in ("a b", str(tmp_path / "a b"), f"{tmp_path}/a b/", f"file:{tmp_path}/a b", f"file://{tmp_path}/a b"):
        assert Folder("checkpoint", name).text("x") == "text", name
    with pytest.raises(OptionError, match="checkpoint='nonsense://x' cannot be reached"):
        Folder("checkpoint", "nonsense://x")
