import base64
import dataclasses
import math
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from singularbayes.metrics import Interval
from singularbayes.report import Entry, Panel, Report, picture, render, standard_panels, write

NAN = math.nan
NASTY = '<script>alert(1)</script> "x" $y_ & \' -->'


class Page(HTMLParser):
    """Tags, attributes and visible text; every opened tag must be closed in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words, self.stack = [], [], [], []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, key, value or "") for key, value in attrs]
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack[-1:] != ["style"]:
            self.words.append(data)


@pytest.fixture
def small(make_entry) -> Report:
    entries = [make_entry("a", 0.6, 0.9), make_entry("b", 0.8, 0.4)]
    return Report(
        title="T", recipe="r", about={"Machine": "2 cores"}, entries=entries, command="singularbayes demo"
    )


def test_verdict_comes_first_and_the_command_last(sample_report):
    text = render(sample_report)
    places = [text.index(f'id="{part}"') for part in ("verdict", "criteria", "methods", "figures", "run")]
    assert places == sorted(places)
    assert text.index("<code>singularbayes run icu") > places[-1]


def test_page_is_well_formed_and_asks_for_nothing_outside_itself(sample_report):
    page = Page(render(sample_report))
    loads = [(t, k, v) for t, k, v in page.attributes if k in {"src", "href", "srcset", "action", "data"}]
    assert loads
    assert all(t == "img" and v.startswith("data:image/") for t, _, v in loads)
    assert not {"script", "link", "iframe", "object", "form"} & set(page.tags)
    assert all(v for t, k, v in page.attributes if t == "img" and k == "alt")


def test_every_name_is_escaped(make_entry):
    entries = [make_entry(NASTY, 0.6, 0.9), make_entry("b", 0.8, 0.4)]
    report = Report(
        title=NASTY, recipe=NASTY, about={NASTY: NASTY}, entries=entries,
        diagnoses={NASTY: entries[0].diagnosis},
        figures=standard_panels(entries), notes=[NASTY], command=NASTY,
    )  # fmt: skip
    text = render(report)
    assert "<script" not in text
    assert "script" not in Page(text).tags
    assert NASTY in "".join(Page(text).words)


def test_names_of_sets_are_escaped(small):
    for_set = small.entries[0].evaluations[0]
    renamed = dataclasses.replace(
        for_set, ood={"<img src=x>": for_set.ood["near"]}, prevalence={"<img src=x>": 0.3}
    )
    entry = dataclasses.replace(small.entries[0], evaluations=(renamed,))
    assert "img" not in Page(render(dataclasses.replace(small, entries=[entry]))).tags


def test_undefined_is_a_word_and_nan_never_appears(small):
    blank = Interval(NAN, NAN, NAN)
    evaluation = small.entries[0].evaluations[0]
    ood = {s: {k: dict.fromkeys(m, blank) for k, m in by.items()} for s, by in evaluation.ood.items()}
    metrics = dict.fromkeys(evaluation.metrics, blank)
    broken = dataclasses.replace(evaluation, ood=ood, metrics=metrics, prevalence={"near": NAN})
    entry = Entry(name="x", evaluations=(broken,), diagnosis=None, numbers=3, seconds=NAN)
    for entries in ([entry], [*small.entries, entry]):
        page = Page(render(dataclasses.replace(small, entries=entries, figures=standard_panels(entries))))
        words = " ".join(page.words)
        assert "undefined" in words
        assert "not measured" in words
        assert not re.search(r"\b(nan|none|inf)\b", words, re.IGNORECASE)


def test_page_of_a_regression_speaks_of_coverage(regression_report):
    words = " ".join(Page(render(regression_report)).words)
    assert "Coverage of 95% intervals" in words
    assert "by epistemic variance" in words
    assert "the criteria were not measured" in words


def test_page_without_unfamiliar_sets_and_figures_is_whole(small):
    evaluation = dataclasses.replace(small.entries[0].evaluations[0], ood={}, ood_metrics={}, prevalence={})
    entry = dataclasses.replace(small.entries[0], evaluations=(evaluation,), diagnosis=None)
    words = " ".join(Page(render(dataclasses.replace(small, entries=[entry]))).words)
    assert "No out-of-distribution set was measured." in words


def test_prevalence_seeds_machine_and_command_are_printed(small):
    words = " ".join(Page(render(small)).words)
    for said in (
        "30.8% of the cases",
        "guess 0.308",
        "2 cores",
        "a: 0",
        "200 resamples",
        "singularbayes demo",
    ):
        assert said in words


def test_a_clear_winner_is_bold_and_a_tie_is_not(make_entry):
    def bold(near: float) -> list[str]:
        entries = [make_entry("a", 0.6, 0.9), make_entry("b", near, 0.9)]
        text = render(Report(title="T", recipe="r", about={}, entries=entries, command="c"))
        return re.findall(r"<td><strong>([^<]*)</strong>", text)

    assert "0.800" in bold(0.8)
    assert "0.620" not in bold(0.62)


def test_a_report_made_again_is_the_same_page(small):
    def page() -> str:
        return render(dataclasses.replace(small, figures=standard_panels(small.entries)))

    assert page() == page()


def test_a_heavy_figure_becomes_pixels():
    figure = Figure()
    axes = figure.subplots()
    for i in range(400):
        axes.plot(range(100), [(i * k) % 97 for k in range(100)])
    assert picture(figure).startswith("data:image/png;base64,")
    light = picture(Figure())
    assert light.startswith("data:image/svg+xml;base64,")
    assert b"<svg" in base64.b64decode(light.split(",")[1])


def test_letters_that_the_figure_font_lacks_do_not_warn(small, make_entry):
    entries = [make_entry("方法", 0.6, 0.9), make_entry("_b $", 0.8, 0.4)]
    assert "方法" in render(dataclasses.replace(small, entries=entries, figures=standard_panels(entries)))


def test_writing_replaces_the_file_in_one_step(small, tmp_path):
    path = tmp_path / "new folder" / "report ü.html"
    assert write(small, path) == path
    assert path.read_text(encoding="utf-8") == render(small)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_failure_leaves_the_old_file_and_no_draft(small, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write(small, path)
    assert [(p.name, p.read_text(encoding="utf-8")) for p in tmp_path.iterdir()] == [("report.html", "old")]


def test_a_folder_is_refused_with_advice(small, tmp_path):
    with pytest.raises(IsADirectoryError, match=r"report\.html"):
        write(small, tmp_path)


def test_reports_that_cannot_be_read_are_refused(small, make_entry, regression_report):
    first = small.entries[0]
    for change, message in (
        ({"entries": []}, "without entries"),
        ({"entries": [first, first]}, "each name once"),
        ({"entries": [first, regression_report.entries[0]]}, "expected one"),
        ({"diagnoses": {"z": first.diagnosis}}, "expected names among"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(small, **change)
    with pytest.raises(ValueError, match="at least one"):
        dataclasses.replace(first, evaluations=())
    with pytest.raises(ValueError, match="empty name"):
        dataclasses.replace(first, name=" ")
    with pytest.raises(ValueError, match="expected one task"):
        dataclasses.replace(
            first, evaluations=(*first.evaluations, *regression_report.entries[0].evaluations)
        )


def test_panel_text_is_the_alternative_for_readers_who_cannot_see_it(small):
    panel = Panel(title="A title", caption="How to read it.", figure=Figure())
    page = Page(render(dataclasses.replace(small, figures=[panel])))
    assert ("img", "alt", "A title. How to read it.") in page.attributes
