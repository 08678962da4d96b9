"""A short form of every promise, and the page of the record."""

import pytest

from linnet.storage import read_json_file
from tests.prove.__main__ import PAGE, RECORD, try_promise
from tests.prove.page import render_reliability
from tests.prove.promises import ordered_promises


@pytest.mark.parametrize("name", [each.name for each in ordered_promises()])
def test_a_promise_is_kept_in_a_few_trials(name):
    found = try_promise(name, short=True)
    assert found["failures"] == []
    assert found["trials"] > 0 or found["skipped"]


def test_the_page_is_rendered_from_the_record():
    record = read_json_file(RECORD)
    names, known = [each.name for each in ordered_promises()], [each["name"] for each in record["promises"]]
    assert known == [name for name in names if name in known]
    assert len(known) > 20
    assert all(each["failed"] == 0 for each in record["promises"])
    page = PAGE.read_text()
    assert render_reliability(record, ordered_promises(), page) == page
