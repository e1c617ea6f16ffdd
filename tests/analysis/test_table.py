"""Every format of a sheet shows what it is given, and nothing that its reader would misread."""

import csv
import io
import math
import re

import pytest
from made_studies import made

from mlmjoint.analysis import claims, comparisons, distance, summary, table
from mlmjoint.analysis.table import Entry, Sheet


@pytest.fixture(scope="module")
def sheets():
    return summary.sheets([made(20)])


class TestEntry:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (12.3456, "12.35"),
            (0.0123456, "0.01235"),
            (0.0, "0.0000"),
            (-1.5, "−1.500"),
            (400, "400"),
            (1.23456e-7, "1.235e−07"),
            (-math.inf, "−∞"),
        ],
    )
    def test_numbers_have_four_digits(self, value, text):
        assert table.number(value) == text

    @pytest.mark.parametrize(
        ("value", "text"), [(0.0004, "< 0.001"), (0.0444, "0.044"), (math.nan, "–")]
    )
    def test_p_values(self, value, text):
        assert str(Entry(value, kind="p")) == text

    @pytest.mark.parametrize(
        "interval, parts",
        [
            ((0.00297, -0.01452, 0.01262), ["+0.003*", "[−0.015, +0.013]"]),
            ((-0.00004, -0.02, 0.02), ["+0.000*", "[−0.020, +0.020]"]),
            ((2.345, 1.0, 4.0), ["+2.3*", "[+1.0, +4.0]"]),
            ((1.0,), ["+1.00*"]),
            ((-1.0,), ["−1.00*"]),
        ],
    )
    def test_differences_have_the_digits_their_interval_justifies(self, interval, parts):
        assert Entry(*interval, kind="difference", mark="*").parts(3) == parts


class TestFormats:
    def test_markdown_is_rectangular(self, sheets):
        for sheet in sheets:
            lines = table.to_markdown(sheet).splitlines()[2:]
            assert len({line.count("|") for line in lines}) == 1
            assert len(lines) == len(sheet.rows) + 2
        assert table.markdown_lines(["a", "b"], [["x|y", None]], "ll")[1:] == [
            "| --- | --- |",
            "| x\\|y |  |",
        ]

    def test_csv_holds_every_number_at_full_precision(self, sheets):
        rows = list(csv.DictReader(io.StringIO(table.render(sheets, "csv"))))
        assert {row["study"] for row in rows} == {"made"}
        places = {(row["table"], row["row"], row["column"]): row for row in rows}
        for name, *entries in sheets[0].rows:
            for column, entry in zip(sheets[0].columns[1:], entries, strict=True):
                if entry is not None:
                    row = places[sheets[0].title, name, column]
                    numbers = [float(row[key]) for key in ("value", "low", "high")]
                    assert numbers == [entry.value, entry.low, entry.high]

    def test_latex_of_every_sheet_is_ascii_and_prints_what_it_says(self):
        """Under pdflatex; a bare < or | would come out as another letter in its usual font."""
        odd = made(20, name="50%_of ~{a}$b^2|c<d #1 \\\\e & f")
        for k, record in enumerate(odd.records):  # no test, no interval, tiny and infinite numbers
            record["methods"]["mlm"] |= {"p_nll": math.inf, "kl_true": 1e-5 * k, "g_kl": -1e-5 * k}
        studies = [made(20, {"ag": -0.4}), odd, made(20, name="contiguous", pairs="contiguous")]
        some = [claims.best(study) for study in studies]
        every = [*summary.sheets(studies), *summary.sheets(studies[:1], "distance")]
        every += [claims.tally(some), claims.grid(some), claims.verdict_sheet(some, "x")]
        names = ("against", "steps", "spread", "neighbours")
        every += [getattr(comparisons, f"{name}_sheet")(studies) for name in names]
        every += [
            comparisons.prediction_sheet(studies[:1], p) for p in ("interaction", "objective")
        ]
        every += [distance.bin_sheet(studies[0], doubling=True, more_than=1)]
        every += [sheet.turned() for sheet in every if sheet.rows]
        text = table.render(every, "latex")
        assert text.isascii()
        for part in ("$<$ 0.001", r"$\infty$", "e$-$0", "& -- &", r"50\%\_of"):
            assert part in text
        assert text.count(r"\begin{") == text.count(r"\end{") == 2 * len(every)
        plain = re.sub(r"(?<!\\)\$.+?(?<!\\)\$", "", text)  # without formulas
        known = "begin|end|centering|caption|toprule|midrule|bottomrule"
        known += "|text(?:backslash|asciitilde|asciicircum)"
        plain = re.sub(rf"\\(?:[&%_#${{}}\\]|(?:{known})\b)", "", plain)
        assert not set(plain) & set("<>|$^~#_%\\"), set(plain)

    def test_latex_rows_do_not_begin_with_an_option_of_the_row_before(self):
        sheet = Sheet("t", ["x", "y"], [["[b]", "1"], ["*", "2"], ["", "[c]"]])
        lines = table.to_latex(sheet).splitlines()
        assert {r"{}[b] & 1 \\", r"{}* & 2 \\", r" & [c] \\"} <= set(lines)

    def test_html_has_headings_a_box_and_escaped_text(self):
        rows = [["a < b", Entry(0.12345, 0.1, 0.2), "MLM and AG"], ["none", None, ""]]
        rows.append(["x", Entry(0.0001, kind="p"), ""])
        text = table.to_html(Sheet("x & y", ["name", "KL", "which"], rows), digits=3)
        assert '<th scope="col">KL</th>' in text and '<th scope="row">a &lt; b</th>' in text
        assert '0.123 <span class="interval">[0.100, 0.200]</span>' in text
        assert "<td></td>" in text and "x &amp; y" in text
        assert 'tabindex="0"' in text and "overflow-x: auto" in text
        # Lines break within words, but not within a number.
        assert "<td>&lt;\u00a00.001</td>" in text and "<td>MLM and AG</td>" in text

    def test_plain_text_is_aligned(self):
        rows = [["ag", Entry(1.5, 1.25, 2.0)], ["chain-ab", Entry(12.0)]]
        title, *lines = table.to_text(Sheet("title", ["", "KL"], rows), digits=3).splitlines()
        assert title == "title" and len({len(line) for line in lines}) == 1
        assert lines[1] == "ag        1.50 [1.25, 2.00]"
        # A Chinese character takes two columns of a terminal.
        assert table.aligned([["字", "1"], ["abc", "22"]], [False, True]) == ["字    1", "abc  22"]
