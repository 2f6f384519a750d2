import pathlib
from singularbayes.report import write
def test_x(sample_report, regression_report):
    write(sample_report, "/tmp/sb/report/a.html"); write(regression_report, "/tmp/sb/report/b.html")
