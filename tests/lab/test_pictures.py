"""README's picture: it is drawn from the pairs of the reference, and the committed file is what the script draws."""

from __future__ import annotations

from counterflow.lab.pictures import BAND_KM, PATH, WHERE, WINDOW_MIN, draw, main, picture
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec


def test_the_pairs_are_those_of_the_reference():
    shown = picture()
    spec = build_spec(shown.left.schema, shown.right.schema, where=WHERE, time="minute", window=WINDOW_MIN)
    expected = [(left, right) for left, right, _ in reference_pairs(spec, shown.left, shown.right)]
    assert sorted(shown.pairs) == sorted(expected) and 20 < len(expected) < 40


def test_every_report_in_a_box_has_a_line_and_no_other():
    """The boxes are drawn from the band and the window, the lines from the join: they say the same."""
    shown = picture()
    reports, strikes = (
        list(zip(*(t[c].to_pylist() for c in ("minute", "x")), strict=True)) for t in (shown.left, shown.right)
    )
    in_boxes = {
        (i, j)
        for i, (minute, x) in enumerate(reports)
        for j, (strike_minute, strike_x) in enumerate(strikes)
        if abs(minute - strike_minute) <= WINDOW_MIN and abs(x - strike_x) <= BAND_KM
    }
    assert in_boxes == set(shown.pairs)


def test_the_script_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["pictures", str(tmp_path / "join.svg")])
    main()
    assert f"{len(picture().pairs)} pairs" in capsys.readouterr().out
    assert (tmp_path / "join.svg").read_text().startswith("<?xml")


def test_the_same_picture_gives_the_same_file(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw(picture(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_committed_picture():
    text = PATH.read_text()
    assert len(text) < 100_000 and text.count('id="line2d_') >= len(picture().pairs)
