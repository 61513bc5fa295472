"""What units took, what follows from it, and how a running build learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from typer.testing import CliRunner

from smwheel.cli import app
from smwheel.errors import RecipeError
from smwheel.estimate import ledger as this_users_ledger
from smwheel.governor.broker import Outcome
from smwheel.governor.learning import Learner, learner_from_json, learner_to_json
from smwheel.governor.ledger import Build, Cost, CostRow, Ledger, predict_from_rows, read_costs_tsv, write_costs_tsv
from smwheel.governor.prediction import MARGIN, PRIOR, Prediction, Source

MIB = 1 << 20
BUILD = Build("lib", "2.0", "120a", "13.0.88", "f1")


def cost(unit: str, peak_mib: float, *, version: str = "2.0", family: str = "", flags: str = "f1") -> Cost:
    return Cost("lib", version, unit, family, "120a", "13.0.88", flags, int(peak_mib * MIB), cpu=9.0, wall=10.0)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "cache" / "costs.sqlite")


def predict(ledger: Ledger, unit: str = "m/u.cu", family: str = "m", said: Prediction = PRIOR) -> Prediction:
    return ledger.predict("lib", "2.0", unit, family, "120a", "13.0.88", "f1", lambda: said)


def row(
    unit: str,
    peak: float,
    *,
    version: str = "1.0",
    family: str = "",
    arch: str = "120a",
    kind: Literal["measured", "guessed"] = "measured",
) -> CostRow:
    return CostRow(version, arch, unit, family, 7.0, peak, kind)


def test_each_source_comes_before_the_next(ledger: Ledger) -> None:
    guessed = Prediction.of(500 * MIB, 7.0, Source.GUESSED)
    assert predict(ledger) == PRIOR
    assert predict(ledger, said=guessed) == guessed
    ledger.record(cost("m/other.cu", 600, family="m"))
    assert predict(ledger, said=guessed).source is Source.FAMILY
    measured = Prediction.of(550 * MIB, 7.0, Source.COSTS)
    assert predict(ledger, said=measured) == measured
    ledger.record(cost("m/u.cu", 700, version="1.0"))
    assert predict(ledger, said=measured).source is Source.VERSION
    ledger.record(cost("m/u.cu", 800))
    found = predict(ledger, said=measured)
    assert found == Prediction(int(800 * MIB * MARGIN[Source.SAME]), 9.0, Source.SAME)


def test_the_light_units_of_a_family_do_not_make_its_heavy_ones_light(ledger: Ledger) -> None:
    # A build that was stopped after the bindings: what is heavy must not be started as if it were a binding.
    ledger.record(cost("m/binding.cu", 245, family="m"))
    guessed = Prediction.of(9000 * MIB, 100.0, Source.GUESSED)
    found = predict(ledger, said=guessed)
    assert found == Prediction(guessed.peak_bytes, 9.0, Source.FAMILY)
    learner = Learner(known={"m/u.cu": found}, families={"m/u.cu": "m", "m/binding.cu": "m"})
    learner.learn("m/binding.cu", Outcome(0, 5, 4, 245 * MIB))
    assert learner.predict("m/u.cu").peak_bytes == guessed.peak_bytes


def test_other_flags_are_another_version_and_other_architectures_are_nothing(ledger: Ledger) -> None:
    ledger.record(cost("m/u.cu", 700, flags="f2"))
    assert predict(ledger).source is Source.VERSION
    assert ledger.predict("lib", "2.0", "m/u.cu", "m", "90a", "13.0.88", "f1") == PRIOR


def test_the_newest_measurement_replaces_the_last(ledger: Ledger) -> None:
    for peak in (900, 300):
        ledger.record(cost("m/u.cu", peak))
    assert [one.peak for one in ledger.all("lib")] == [300 * MIB]
    assert ledger.all("other") == []


def test_a_family_is_as_heavy_as_its_heaviest(ledger: Ledger) -> None:
    for number, peak in enumerate((300, 5000, 400)):
        ledger.record(cost(f"m/{number}.cu", peak, family="m"))
    assert predict(ledger).peak_bytes == int(5000 * MIB * MARGIN[Source.FAMILY])


def test_the_row_that_fits_best() -> None:
    rows = [row("m/*", 500), row("m/u.cu", 400), row("m/u.cu", 450, version="2.0"), row("*/u.cu", 9000)]
    options = {"version": "2.0", "family": "", "arch": "120a"}
    assert predict_from_rows(rows, names=["m/u.cu"], **options) == Prediction.of(450 * MIB, 7.0, Source.COSTS)
    assert predict_from_rows(rows, names=["m/x.cu"], **options) == Prediction.of(500 * MIB, 7.0, Source.GUESSED)
    by_family = [row("m/other.cu", 300, family="m")]
    options = {"version": "2.0", "arch": "120a"}
    assert predict_from_rows(by_family, names=["m/x.cu"], family="m", **options).source is Source.GUESSED
    assert predict_from_rows(by_family, names=["m/x.cu"], family="n", **options) == PRIOR


def test_a_measured_row_holds_before_a_guess_whatever_name_it_uses() -> None:
    rows = [row("m/source.cu", 900, version="2.0"), row("m/*", 100, version="*", kind="guessed")]
    found = predict_from_rows(rows, names=["m/object.o", "m/source.cu"], version="2.0", family="m", arch="120a")
    assert found == Prediction.of(900 * MIB, 7.0, Source.COSTS)
    guess = predict_from_rows(rows, names=["m/other.o", "m/other.cu"], version="2.0", family="m", arch="120a")
    assert guess == Prediction.of(100 * MIB, 7.0, Source.GUESSED)


def test_what_is_exported_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "costs.tsv"
    assert write_costs_tsv(path, [cost("m/b.cu", 250, family="m"), cost("m/a.cu", 100)]) == 2
    rows = read_costs_tsv(path)
    assert [(r.unit, r.family, r.peak_mib, r.cpu_s, r.kind) for r in rows] == [
        ("m/a.cu", "", 100, 9.0, "measured"),
        ("m/b.cu", "m", 250, 9.0, "measured"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version\tarch\tunit\n", "columns are missing: family, cpu_s, peak_mib, kind"),
        ("version\tarch\tunit\tfamily\tcpu_s\tpeak_mib\tkind\n1\t120a\tu\tf\tmany\t3\tmeasured\n", "line 2 "),
        ("version\tarch\tunit\tfamily\tcpu_s\tpeak_mib\tkind\n1\t120a\tu\n", "line 2 "),
    ],
)
def test_a_bad_costs_file_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.tsv"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        read_costs_tsv(path)
    assert caught.value.where == str(path)
    assert caught.value.cure


def test_the_first_of_a_family_tells_of_the_others(ledger: Ledger) -> None:
    sure = Prediction(MIB, 1.0, Source.SAME)
    learner = Learner(known={"a": PRIOR, "b": PRIOR, "sure": sure}, families=dict.fromkeys(("a", "b", "sure"), "f"))
    learner.learn("a", Outcome(0, 5, 4, 400 * MIB))
    assert learner.predict("b") == Prediction(int(400 * MIB * MARGIN[Source.FAMILY]), 4.0, Source.FAMILY)
    assert learner.predict("sure") == sure


def test_what_is_learned_is_kept_for_the_next_build(ledger: Ledger) -> None:
    value = json.loads(json.dumps(learner_to_json({"m/u.cu": PRIOR}, {"m/u.cu": "m"}, ledger.path, BUILD)))
    learner = learner_from_json(value, pytest.fail)
    assert learner.planned() == {"m/u.cu": PRIOR}
    learner.learn("m/u.cu", Outcome(0, 5, 4, 400 * MIB))
    assert predict(ledger).source is Source.SAME
    assert learner.predict("another build system's unit") == PRIOR


def test_a_ledger_that_cannot_be_written_costs_the_lesson_not_the_build(ledger: Ledger) -> None:
    heard: list[str] = []
    learner = Learner(known={}, families={}, ledger=ledger, build=BUILD, warn=heard.append)
    ledger.path.write_bytes(b"no database at all" * 100)
    learner.learn("u", Outcome(0, 5, 4, MIB))
    assert len(heard) == 1
    assert str(ledger.path) in heard[0]


def test_costs_shows_and_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMWHEEL_CACHE", str(tmp_path / "cache"))
    run = CliRunner().invoke
    assert "nothing was measured yet" in run(app, ["costs"]).output
    this_users_ledger().record(cost("m/u.cu", 321, family="m"))
    assert "321" in run(app, ["costs", "lib"]).output
    assert json.loads(run(app, ["costs", "--json"]).output)["costs"][0]["unit"] == "m/u.cu"
    export = tmp_path / "costs.tsv"
    assert run(app, ["costs", "lib", "--export", str(export)]).exit_code == 0
    assert [r.unit for r in read_costs_tsv(export)] == ["m/u.cu"]
    assert run(app, ["costs", "--export", str(export)]).exception.cure.startswith("name the recipe")  # type: ignore[union-attr]


def test_a_damaged_ledger_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "costs.sqlite"
    path.write_bytes(b"no database" * 1000)
    assert Ledger(path).all() == []
    assert path.with_suffix(".damaged").read_bytes().startswith(b"no database")
