import csv
import io
import json

from made_up import made_up

from lemma.studies.result import make_table


def test_rows_hold_means_over_seeds_and_the_lowest_is_marked() -> None:
    table = make_table([*made_up("rnn", [8.0, 8.2, 8.1]), *made_up("lstm", [6.0, 6.2, 6.1])])
    assert [row.best for row in table.rows] == [False, True]
    assert str(table).splitlines()[:4] == [
        "model    perplexity    bits/byte  parameters  tokens  tokens/s  seconds",
        "──────  ───────────  ───────────  ──────────  ──────  ────────  ───────",
        "rnn     8.10 ± 0.25  4.05 ± 0.12       1,234   5,000     2,000      2.5",
        "lstm *  6.10 ± 0.25  3.05 ± 0.12       1,234   5,000     2,000      2.5",
    ]
    assert "Mean ± half the 95 % interval over 3 seeds (Student's t)." in table.caption


def test_a_grid_has_a_column_for_each_word() -> None:
    table = make_table(
        [*made_up("a", [3.0, 3.1], {"depth": 2, "tied": True}), *made_up("a", [4.0], {"depth": 4, "tied": False})]
    )
    assert table.header[:3] == ["model", "depth", "tied"]
    assert [table.cells(row)[:3] for row in table.rows] == [["a *", "2", "true"], ["a", "4", "false"]]


def test_one_seed_has_no_interval_and_the_caption_says_so() -> None:
    table = make_table(made_up("rnn", [8.0]))
    assert "±" not in table.cells(table.rows[0])[1]
    assert "one seed, which has no interval" in table.caption


def test_failed_and_waiting_seeds_stay_rows_with_their_reason() -> None:
    table = make_table([*made_up("rnn", ["the loss is nan", "out of memory"]), *made_up("lstm", [6.0, None])])
    assert table.cells(table.rows[0])[1] == "–"
    assert table.rows[1].best
    assert table.notes() == [
        "rnn, seed 1 failed: the loss is nan",
        "rnn, seed 2 failed: out of memory",
        "lstm, seed 2 not run yet",
    ]
    assert str(table).endswith("\n".join(table.notes()))
    assert make_table(made_up("rnn", ["no"])).caption == "No run has come to its end."


def test_csv_and_json_hold_the_figures_unrounded() -> None:
    table = make_table(
        [*made_up("a,b", [1 / 3, 2 / 3], {"depth": 2}), *made_up("c", ["line\nbreak, comma"], {"depth": 4})]
    )
    first, second = csv.DictReader(io.StringIO(table.to_csv()))
    assert (first["contender"], first["depth"], float(first["perplexity"])) == ("a,b", "2", 0.5)
    assert second["perplexity"] == ""
    assert second["notes"] == "seed 1 failed: line\nbreak, comma"
    assert json.loads(json.dumps(table.to_dict()))["rows"][0]["perplexity"] == 0.5


def test_markdown_is_one_table_whatever_the_names() -> None:
    markdown = make_table([*made_up("a|b", [3.0]), *made_up("c", ["line\nbreak | <b>"])]).to_markdown()
    lines = markdown.splitlines()
    assert all(line.replace("\\|", "").count("|") == 8 for line in lines[:4])
    assert lines[2].startswith("| a\\|b \\* |")
    assert "- c, seed 1 failed: line break \\| &lt;b>" in lines


def test_rows_are_called_by_what_tells_them_apart() -> None:
    grid = make_table([*made_up("a", [3.0], {"depth": 2, "N": 3}), *made_up("a", [4.0], {"depth": 4, "N": 3})])
    assert [row.title for row in grid.rows] == ["depth=2, N=3", "depth=4, N=3"]
    both = make_table([*made_up("a", [3.0], {"depth": 2}), *made_up("b", [4.0], {"depth": 2})])
    assert [row.title for row in both.rows] == ["a, depth=2", "b, depth=2"]
    assert [row.title for row in make_table(made_up("a", [3.0])).rows] == ["a"]
