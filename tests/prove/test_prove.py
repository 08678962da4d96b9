"""A short form of every promise, the page of the record, and what happens when the trials are stopped."""

import pytest

from linnet.storage import read_json_file
from tests.prove import process, record
from tests.prove.page import render_reliability
from tests.prove.process import Working, try_in_process, try_promise
from tests.prove.promises import ordered_promises
from tests.prove.record import PAGE, RECORD, Record

NAMES = [each.name for each in ordered_promises()]


@pytest.mark.parametrize("name", NAMES)
def test_a_promise_is_kept_in_a_few_trials(name):
    found = try_promise(name, short=True)
    assert found["failures"] == []
    assert found["trials"] > 0 or found["skipped"]


def test_the_page_is_rendered_from_the_record():
    content = read_json_file(RECORD)
    known = [each["name"] for each in content["promises"]]
    assert known == [name for name in NAMES if name in known]
    assert len(known) > 20
    assert all(each["failed"] == 0 for each in content["promises"])
    page = PAGE.read_text()
    assert render_reliability(content, ordered_promises(), page) == page


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A copy of the record and its page; the files named are its code."""
    for name in ("RECORD", "PAGE"):
        (tmp_path / name).write_bytes(getattr(record, name).read_bytes())
        monkeypatch.setattr(record, name, tmp_path / name)
    digest = ["one"]
    monkeypatch.setattr(record, "code_digest", lambda: digest[0])
    return digest


def _found(name, failed=0):
    about = next(each for each in ordered_promises() if each.name == name)
    tried = {"number": about.number, "name": name, "sentence": about.sentence, "how": about.how, "trials": 12_345}
    lists = {"failures": [], "skipped": [], "measured": {}}
    return {**tried, "failed": failed, **lists, "minutes": 1.0, "cpu_minutes": 2.0}


def test_stopped_trials_go_on_with_the_rest(elsewhere):
    first = Record(whole=True)
    assert first.done == []
    for name, failed in ((NAMES[3], 0), (NAMES[1], 1)):
        first.add(_found(name, failed))
    assert Record(whole=False).done == []
    again = Record(whole=True)
    assert again.done == [NAMES[3]]  # one that failed is tried again
    assert again.expected(NAMES[3]) == 2.0
    assert "12,345" in record.PAGE.read_text()
    for name in NAMES:
        if name != NAMES[3]:
            again.add(_found(name))
    assert "unfinished" not in read_json_file(record.RECORD)
    assert "minutes in all" in record.PAGE.read_text()
    assert Record(whole=True).done == []


def test_other_code_begins_again(elsewhere):
    Record(whole=True).add(_found(NAMES[0]))
    elsewhere[0] = "two"
    assert Record(whole=True).done == []


def test_trials_in_a_process_are_those_of_this_one():
    found = try_in_process("no_code_from_data", True, Working())
    assert (found["trials"], found["failures"]) == (80, [])


@pytest.mark.parametrize(("seconds", "line"), [(0.2, "no trial ended in 0 s"), (600, "the process ended with -9")])
def test_a_process_that_hangs_or_dies_has_not_kept_its_promise(monkeypatch, seconds, line):
    working = Working()
    monkeypatch.setattr(process, "SILENCE", seconds)
    if seconds > 1:
        start = process.subprocess.Popen

        def dying(*given, **named):
            made = start(*given, **named)
            made.kill()
            return made

        monkeypatch.setattr(process.subprocess, "Popen", dying)
    found = try_in_process("no_code_from_data", True, working)
    assert (found["failed"], found["failures"]) == (1, [line])
    assert working.processes == {}
