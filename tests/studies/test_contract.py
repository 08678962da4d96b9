"""The contract of every study: it lists, plans, dry-runs, renders its records, and refuses those of others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from linnet.cli.app import run_app as linnet
from linnet.errors import InputError, LinnetError
from linnet.figures.figure import read_figure_metadata
from linnet.registry import STUDY
from linnet.studies.base import OWNER, SOURCE, study_maps_name
from linnet.studies.claims import FAILS, HOLDS, OPEN
from linnet.studies.records import mean_core_seconds, records_sha256
from linnet.studies.trained import CORE

RESULTS = Path(__file__).parents[2] / "docs/results"
PLACES = [(name, scale) for name in STUDY.names() for scale in STUDY[name].scales]
COMMITTED = {STUDY[name]().place(scale): name for name, scale in PLACES if STUDY[name].keeps_records}
COMMITTED = {place: name for place, name in COMMITTED.items() if (RESULTS / place).is_dir()}
each_study = pytest.mark.parametrize("name", STUDY.names())
each_place = pytest.mark.parametrize(("name", "scale"), PLACES)
each_committed = pytest.mark.parametrize(("place", "name"), COMMITTED.items(), ids=str)


@each_study
def test_a_study_says_what_it_is(name):
    found = STUDY[name]().describe()
    assert found["name"] == name
    assert {"paper", "item", "scales", "runs", "kind", "core_hours"} <= found.keys()
    assert found["scales"] in (["cpu"], ["cpu", "paper"])
    assert found["runs"] == len(STUDY[name]().runs("cpu"))
    assert all(isinstance(found[key], str) and found[key] for key in ("paper", "item", "kind", "title"))
    json.dumps(found)


def test_the_registry_lists_every_result():
    folders = {path.parent.name for path in RESULTS.glob("*/*.json")}
    assert folders == set(COMMITTED)


@each_place
def test_planned_runs_have_names_of_their_own(name, scale):
    runs = STUDY[name]().runs(scale)
    assert len(runs) == len(set(runs))


@each_place
def test_a_dry_run_needs_no_data_and_writes_nothing(name, scale, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINNET_DATA", raising=False)
    assert linnet(["reproduce", name, "--scale", scale, "--dry-run", "--json"]) == 0
    planned = json.loads(capfd.readouterr().out)
    study = STUDY[name]()
    assert [run["run"] for run in planned] == study.runs(scale)
    for run in planned:
        assert isinstance(run["gpu_hours"], float)
        numbers = [run[key] for key in ("parameters", "tokens", "steps")]
        assert all(isinstance(number, int) for number in numbers)
        assert all(number > 0 for number in (*numbers, run["gpu_hours"])) == (study.kind == "trained")
    assert list(tmp_path.iterdir()) == []


@each_study
def test_another_scale_is_one_line(name):
    with pytest.raises(InputError, match="unknown scale 'gpu'"):
        STUDY[name]().dry_run("gpu")


@each_committed
def test_committed_pages_match_their_records(place, name):
    study, picture = STUDY[name](), RESULTS / f"{place}.png"
    records = study.read(RESULTS / place)
    assert study.rendered(records, picture.name) in (RESULTS / f"{place}.md").read_text()
    pictures = [picture, *([picture.with_name(study_maps_name(picture.name))] if study.maps(records) else [])]
    for drawn in pictures:
        about = read_figure_metadata(drawn)
        assert (about[OWNER], about[SOURCE]) == (name, records_sha256(records))


@each_committed
def test_committed_records_are_planned_and_what_is_missing_is_named_on_the_page(place, name):
    scale = "paper" if place.endswith("-paper") else "cpu"
    done, planned = {path.stem for path in (RESULTS / place).glob("*.json")}, set(STUDY[name]().runs(scale))
    assert done <= planned
    page = (RESULTS / f"{place}.md").read_text()
    left = page.partition("Planned and not run")[2].partition(".\n")[0]  # nothing where the page says that all is done
    assert {run for run in planned if f"`{run}`" in left} == planned - done


@each_committed
def test_a_dry_run_knows_the_size_of_the_committed_models(place, name):
    study, scale = STUDY[name](), "paper" if place.endswith("-paper") else "cpu"
    planned = {run.run: run for run in study.dry_run(scale)}
    for path, record in zip(sorted((RESULTS / place).glob("*.json")), study.read(RESULTS / place), strict=True):
        if study.kind == "trained":
            assert planned[path.stem].parameters == record["parameters"]
            assert record["tokens"] <= planned[path.stem].tokens  # padding counts there


@each_committed
def test_stated_core_hours_are_those_of_the_committed_records(place, name):
    """Runs without a record take the mean time of those with one."""
    records, scale = STUDY[name]().read(RESULTS / place), "paper" if place.endswith("-paper") else "cpu"
    seconds = mean_core_seconds(records) * len(STUDY[name]().runs(scale))
    stated = pytest.approx(seconds / 3600, rel=0.05) if seconds else None
    assert STUDY[name].core_hours == stated, f"set core_hours of {name} to {seconds / 3600:.2g}"


@each_study
def test_trained_studies_estimate_their_core_hours(name):
    """As stated, or from operations: within a factor of six, the range of speeds that committed runs had."""
    study = STUDY[name]()
    if study.kind == "trained":
        hours = study.describe()["core_hours"]
        operations = sum(6 * run.parameters * run.tokens for run in study.dry_run("cpu"))
        assert hours == study.core_hours or study.core_hours is None
        assert 1 / 6 < hours * 3600 * CORE / operations < 6


@each_committed
def test_a_study_refuses_the_records_of_another(place, name, tmp_path):
    others = [other for other in STUDY.names() if other != name and STUDY[other].keeps_records]
    for other in others:
        with pytest.raises(InputError, match=f"is a result of {name}, not of {other}"):
            STUDY[other]().read(RESULTS / place)
    for text in ("{", "[]", "3", "{}", '{"study": 3}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(LinnetError, match="is not a result of a study"):
            STUDY[name]().read(tmp_path)
    (tmp_path / "x.json").write_text(json.dumps({"study": name}))
    with pytest.raises(LinnetError, match="is not a result of a study: it lacks "):
        STUDY[name]().read(tmp_path)
    (tmp_path / "x.json").unlink()
    with pytest.raises(InputError, match="holds no results"):
        STUDY[name]().read(tmp_path)


@each_committed
def test_claims_are_statements_verdicts_and_numbers(place, name):
    study = STUDY[name]()
    for claim in study.claims(study.read(RESULTS / place)):
        assert claim.verdict in (HOLDS, FAILS, OPEN)
        assert any(letter.isdigit() for letter in claim.evidence)
        assert claim.statement[0].isupper()


def test_names_are_known_and_help_is_shown_without_torch():
    program = "import sys\nfrom linnet.cli.app import run_app\nrun_app(['reproduce', '--help'])\n"
    program += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert all(f"\n    {name}\n" in done.stdout for name in STUDY.names())


def test_the_list_of_studies(capfd):
    assert linnet(["list", "studies", "--json"]) == 0
    found = {study["name"]: study for study in json.loads(capfd.readouterr().out)}
    assert list(found) == STUDY.names()
    assert (found["transnormer-table4"]["item"], found["transnormer-table4"]["runs"]) == ("Table 4", 24)
