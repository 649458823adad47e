"""Tables: rows of CSV, TSV and JSONL files, and errors with line numbers."""

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lemma.data.labels import read_label_file
from lemma.data.pairs import read_pair_file
from lemma.errors import DataError

Write = Callable[..., Path]


def rows_of(path: Path, text: str | None = None, label: str | None = None) -> list[tuple[str, str]]:
    return list(read_label_file(str(path), text, label).examples)


PLAIN = [("It is good.", "yes"), ("It is bad.", "no"), ("So, so", "no"), ("Good", "yes")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\nIt is good.,yes\nIt is bad.,no\n"So, so",no\nGood,yes\n'),
        ("a.csv", 'It is good.,yes\nIt is bad.,no\n"So, so",no\nGood,yes'),
        ("a.csv", "text;label\nIt is good.;yes\nIt is bad.;no\nSo, so;no\nGood;yes\n"),
        ("a.CSV", '\ufefftext,label\r\nIt is good.,yes\r\n\r\nIt is bad.,no\r\n"So, so",no\r\nGood,yes\r\n'),
        ("a.csv", '\ufefftext,label\rIt is good.,yes\rIt is bad.,no\r"So, so",no\rGood,yes\r'),
        ("a.tsv", "It is good.\tyes\rIt is bad.\tno\rSo, so\tno\rGood\tyes"),
        ("a.csv", 'label,review\nyes,It is good.\nno,It is bad.\nno,"So, so"\nyes,Good\n'),
        ("a.csv", 'id,text,label\n1,It is good.,yes\n2,It is bad.,no\n3,"So, so",no\n4,Good,yes\n'),
        ("a.csv", 'headline,mood\nIt is good.,yes\nIt is bad.,no\n"So, so",no\nGood,yes\n'),
        ("a.tsv", "It is good.\tyes\nIt is bad.\tno\nSo, so\tno\nGood\tyes\n"),
        ("a.tsv", 'text\tlabel\n"It is good."\tyes\nIt is bad.\tno\nSo, so\tno\nGood\tyes\n'),
        ("a.jsonl", '{"text": "It is good.", "label": "yes"}\n{"label": "no", "text": "It is bad."}\n\n'
                    '{"text": "So, so", "label": "no", "more": 1}\n{"text": "Good", "label": "yes"}\n'),
        ("a.jsonl", '["It is good.", "yes"]\n["It is bad.", "no"]\n["So, so", "no"]\n["Good", "yes"]\n'),
    ],
)  # fmt: skip
def test_all_table_formats_give_the_same_rows(write: Write, name: str, content: str) -> None:
    assert rows_of(write(content, name)) == PLAIN


@pytest.mark.parametrize(
    "columns", [{"text": "b", "label": "d"}, {"text": "2", "label": "4"}, {"text": "2", "label": "d"}]
)
def test_columns_are_chosen_by_name_or_by_number(write: Write, columns: dict[str, str]) -> None:
    path = write("a,b,c,d\n1,x,5,p\n2,y,6,q\n3,z,7,p\n", "a.csv")
    assert rows_of(path, **columns) == [("x", "p"), ("y", "q"), ("z", "p")]


def test_numeric_column_name_precedes_column_number(write: Write) -> None:
    assert rows_of(write("2,1\nx,p\ny,q\n", "a.csv"), text="2", label="1") == [("x", "p"), ("y", "q")]


def test_line_numbers_account_for_quoted_newlines(write: Write) -> None:
    path = write('text,label\n"one\ntwo, ""three""\n",a\nfour,b\nfive,\n', "a.csv")
    with pytest.raises(DataError, match=r"a\.csv, line 6: the label is empty"):
        rows_of(path)
    full = write('text,label\n"one\ntwo, ""three""\n",a\nfour,b\n', "b.csv")
    assert rows_of(full) == [('one\ntwo, "three"', "a"), ("four", "b")]


def test_unpaired_quotes_in_tsv_are_literal(write: Write) -> None:
    path = write('"Look," she said.\tElla dijo "mira".\n"Go."\tVe.\n', "a.tsv")
    assert read_pair_file(str(path)).examples[0] == ('"Look," she said.', 'Ella dijo "mira".')
    assert read_pair_file(str(path)).examples[1] == ('"Go."', "Ve.")


def test_long_cells_are_read_without_changing_the_csv_limit(write: Write) -> None:
    before = csv.field_size_limit()
    assert len(rows_of(write(f"text,label\n{'x' * 200_000},a\ny,b\n", "a.csv"))[0][0]) == 200_000
    assert csv.field_size_limit() == before


def test_json_numbers_and_booleans_are_labels(write: Write) -> None:
    lines = '{"text": "a", "label": 1}\n{"text": "b", "label": true}\n{"text": "c", "label": 1.5}\n'
    assert [label for _, label in rows_of(write(lines, "a.jsonl"))] == ["1", "true", "1.5"]


@pytest.mark.parametrize(
    ("content", "header"),
    [("good,yes\nbad,no\nfine,yes\n", False), ("words,mood\ngood,yes\nbad,no\nfine,yes\n", True)],
)
def test_note_reports_whether_a_header_was_detected(write: Write, content: str, header: bool) -> None:
    (note,) = read_label_file(str(write(content, "a.csv"))).notes
    assert ("line 1 read as the header" if header else "no header: line 1 read as data") in note
    assert ("text from column 'words', label from column 'mood'" if header else "text from column 1") in note


def test_unique_allowed_label_is_not_taken_for_a_header(write: Write) -> None:
    path = str(write("good,yes\nbad,no\nso so,maybe\n", "a.csv"))
    source = read_label_file(path, allowed_labels=["maybe", "no", "yes"])
    assert [example.label for example in source.examples] == ["yes", "no", "maybe"]


MISTAKES = [
    ("a.csv", "", {}, r"a\.csv: the file is empty"),
    ("a.csv", "text,label\n", {}, r"a\.csv: nothing but a header"),
    ("a.csv", "text,label\na,b\nc\n", {}, r"line 3: 1 column; column 2 \('label'\) is missing"),
    ("a.csv", "text,label\na,b\nc,d,e\n", {}, "line 3: 3 columns where the first row has 2.*in quotes"),
    ("a.csv", "text,label\na,b\n  ,c\n", {}, "line 3: the text is empty. Fill it in, or take the row out"),
    ("a.csv", "text,label\na,b\nc, \n", {}, "line 3: the label is empty"),
    ("a.csv", "text,label\na,b\n", {"text": "txet"}, "unknown column of the text 'txet'. Did you mean 'text'"),
    ("a.csv", "text,label\na,b\n", {"label": "3"}, "there is no column 3 for the label; the first row has 2"),
    ("a.csv", "one\ntwo\n", {}, "line 1: 1 column where 2 are needed.*a comma in .csv, a tab in .tsv"),
    ("a.csv", "a,b,c\nd,e,f\n", {}, "column is the text.*1 'a', 2 'b', 3 'c'. Give --text-column NAME or its number"),
    ("a.csv", 'text,label\na,b\n"c,d\n', {}, "after line 2: a quote that opens or ends where it cannot"),
    ("a.csv", 'text,label\n"a" b,c\n', {}, "a quote that opens or ends where it cannot"),
    ("a.csv", "text,label\ra,b\rc,d\n", {}, "carriage return within a line.*newline.*the same ending"),
    ("a.csv", 'text,label\n"a","b"\r"c","d"\n', {}, "after line 1: a carriage return within a line"),
    ("a.csv", "text,label\ra,b\rc,\r", {}, "line 3: the label is empty"),
    ("a.csv", b"text,label\na,b\ncaf\xe9,c\n", {}, "line 3: the byte 0xe9 is not UTF-8.*iconv -f windows-1252"),
    ("a.csv", "text,label\na,b\n".encode("utf-16"), {}, "line 1.*iconv -f utf-16"),
    ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "a"\n', {}, "line 2: not valid JSON.*Write one object per line"),
    ("a.jsonl", '{"text": "a", "label": "b"}\n{"text": "c"}\n', {}, "line 2: the label is empty"),
    ("a.jsonl", '{"text": "a", "label": "b"}\n"c"\n', {}, "line 2: an object such as"),
    ("a.jsonl", '{"text": "a", "label": "b"}\n["c", "d"]\n', {}, "line 2: objects and lists are mixed"),
    ("a.jsonl", '{"text": "a", "label": ["b"]}\n', {}, "line 1: a text or a number is expected"),
    ("a.jsonl", '{"text": "\\ud800", "label": "b"}\n', {}, "line 1: half a surrogate pair"),
    ("a.txt", "a\tb\n", {}, "ends in .csv, .tsv, .tab, .jsonl or .ndjson is expected.*Rename it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "columns", "message"), MISTAKES)
def test_table_error_names_its_line(
    write: Write, name: str, content: str | bytes, columns: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        rows_of(write(content, name), **columns)


def test_missing_folder_and_misspelt_paths_have_distinct_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.csv: there is no such file"):
        read_label_file(str(tmp_path / "nothing.csv"))
    with pytest.raises(DataError, match="this is a folder"):
        read_label_file(str(tmp_path))
    with pytest.raises(DataError, match=r"Did you mean 'tweets'.*a CSV, TSV, JSONL or CoNLL-U file"):
        read_label_file("twets")
    with pytest.raises(DataError, match="Did you mean 'tatoeba-es'"):
        read_pair_file("tatoeba-en")


@pytest.mark.parametrize(
    ("first", "header"),
    [("en\tes", True), ("source\ttarget", True), ("English\tSpanish", True), ("Go.\tVe.", False), ("ab\tba", False)],
)
def test_pair_header_is_recognized_by_its_names(write: Write, first: str, header: bool) -> None:
    pairs = read_pair_file(str(write(f"{first}\nHi.\tHola.\n", "a.tsv"))).examples
    assert len(pairs) == (1 if header else 2)


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1).map(str.strip).filter(bool)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1), suffix=st.sampled_from([",", ";", "\t"]))
def test_tables_written_by_the_csv_module_round_trip(tmp_path: Path, rows: list[tuple[str, str]], suffix: str) -> None:
    file = io.StringIO()
    csv.writer(file, delimiter=suffix, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    path = tmp_path / ("a.tsv" if suffix == "\t" else "a.csv")
    path.write_bytes(file.getvalue().encode())
    assert rows_of(path) == rows
