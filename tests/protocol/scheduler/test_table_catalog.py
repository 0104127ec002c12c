"""Tables that worker groups declare."""

import pytest
from msgspec.structs import replace

from shoal.protocol.messages import Declare, NewView, NotDeclared
from shoal.tables.spec import asp, bsp


@pytest.mark.parametrize(
    ("name", "rule", "owner"),
    [
        ("eval/w", bsp(), "eval"),
        ("w", asp(), ""),
        ("other/w", asp(), ""),
        ("w", bsp(), None),
        ("a//b", asp(), None),
        ("eval/", asp(), None),
    ],
)
def test_a_tables_name_decides_which_groups_clocks_it_follows(attached, rigs, name, rule, owner):
    spec = replace(rigs.table(rule, name=name), group="somebody's")
    attached.receive("guest-0", Declare(attached.incarnation("guest-0"), spec))
    if owner is None:
        assert attached.told(NotDeclared)["guest-0"].table == name
        return
    attached.promise()
    assert [(each.name, each.group) for each in attached.view.tables] == [(name, owner)]


def test_another_group_may_declare_an_existing_table(attached, rigs):
    attached.receive("worker-0", Declare(2, rigs.table(bsp())))
    attached.promise()
    attached.receive("guest-0", Declare(attached.incarnation("guest-0"), rigs.table(bsp())))
    assert attached.told(NewView)["guest-0"].view.tables[0].group == ""
