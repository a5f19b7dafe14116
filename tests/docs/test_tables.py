"""The generated tables of the docs are up to date."""

import pytest

from tests.docs.examples import ROOT
from tools import tables


@pytest.mark.parametrize("path", list(tables.pages()), ids=lambda path: str(path.relative_to(ROOT)))
def test_generated_tables_of_a_page_are_up_to_date(path):
    page = path.read_text()
    assert tables.with_tables(page) == page, "make tables"


def test_every_generated_table_is_on_a_page():
    pages = "".join(path.read_text() for path in tables.pages())
    assert sorted(tables.TABLE.findall(pages), key=lambda found: found[1])
    assert {name for _, name, _ in tables.TABLE.findall(pages)} == tables.TABLES.keys()
