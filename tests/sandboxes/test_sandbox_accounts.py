"""Users of a sandbox, as its files name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from whippletree.sandboxes.accounts import Account, find


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\n# a comment\nbad:x:minus:0::/:/bin/sh\nshort:x:5\n:x:9:9::/:/bin/sh\n"
        "user:x:1000:100:User:/home/user:/bin/sh\n"
    )
    (tmp_path / "etc" / "group").write_text("users:x:100:user\ndocker:x:998:other,user\nbad:x:y:user\nnone:x:7:\n")
    return str(tmp_path)


def test_names_and_numbers(base: str) -> None:
    assert find(base, "user") == find(base, "1000") == Account("user", 1000, 100, (100, 998), "/home/user")
    assert find(base, "root").uid == 0
    assert find(base, "4321") == Account("4321", 4321, 4321, (4321,), "/")


@pytest.mark.parametrize("user", ["bad", "short", "", "nobody", "-1", "4294967295", "1 ", "user:x"])
def test_what_is_no_user_is_refused(base: str, user: str) -> None:
    with pytest.raises(ValueError, match="no user"):
        find(base, user)


def test_files_that_are_links_or_missing(base: str) -> None:
    passwd = Path(base, "etc", "passwd")
    Path(base, "etc", "group").unlink()
    assert find(base, "user").groups == (100,)
    passwd.rename(Path(base, "real"))
    passwd.symlink_to("../real")
    with pytest.raises(OSError, match="symbolic links"):
        find(base, "user")
    passwd.unlink()
    assert find(base, "12").uid == 12


def test_a_huge_file_is_read_to_its_limit_only(base: str) -> None:
    with Path(base, "etc", "passwd").open("a") as file:
        file.write("#" * 2_000_000 + "\nlate:x:5:5::/:/bin/sh\n")
    with pytest.raises(ValueError, match="no user"):
        find(base, "late")
