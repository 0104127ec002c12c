"""Names of tables and nodes, as each worker group says them."""

from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.namespaces import local, qualified, seen_from
from shoal.protocol.views import valid_group


@given(
    name=st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1),
    space=st.text("ab1-_", max_size=3),
)
def test_a_local_name_qualifies_back_to_the_full_name(name, space):
    full = name.lstrip("/") or "w"
    assert qualified(local(full, space), space) == full
    assert valid_group(space)


def test_a_view_seen_from_a_namespace_has_local_table_names(rigs):
    tables = tuple(rigs.table(name=name) for name in ("w", "eval/w", "evaluation/w"))
    view = rigs.view_of(servers=1, tables=tables)
    assert seen_from(view, "") is view
    seen = seen_from(view, "eval")
    assert [spec.name for spec in seen.tables] == ["/w", "w", "/evaluation/w"]
    assert seen.placements_of("w") == view.placements_of("eval/w")
