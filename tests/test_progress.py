"""What a run shows: whole counts, four digits, its own unit."""

from singularbayes.progress import shown


def test_lines_name_their_unit_and_show_counts_as_counts(capsys):
    with shown("NUTS", 2, True, unit="step") as display:
        display(2, 2, {"acceptance": 0.81234, "divergences": 3})
    with shown("MAP", 1, True) as display:
        display(1, 1, {"nll": 0.5})
    err = capsys.readouterr().err
    assert err == "NUTS: step 2/2  acceptance 0.8123  divergences 3\nMAP: epoch 1/1  nll 0.5000\n"


def test_false_shows_nothing(capsys):
    with shown("MAP", 1, False) as display:
        display(1, 1, {"nll": 0.5})
    assert capsys.readouterr().err == ""
