"""Two wheels may bring the same file only with the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from package_index import make_wheel

from envlock.errors import EnvlockError, Exit, Finding, exit_code_of
from envlock.lock import Wheel
from envlock.resolve.overlaps import check_overlaps
from envlock.resolve.python import newest_date, wheel_date
from envlock.store import Store


def stored(store: Store, name: str, content: dict[str, str], entry_points: str = "") -> Wheel:
    file = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    body = make_wheel(file, content=content, entry_points=entry_points)
    with store.incoming() as blob:
        blob.write(body)
    return Wheel(name=name, version="1.0", file=file, sha256=hashlib.sha256(body).hexdigest(), size=len(body), index="local")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def clashes(store: Store, *wheels: Wheel) -> tuple[Finding, ...]:
    with pytest.raises(EnvlockError) as caught:
        check_overlaps(wheels, store)
    assert exit_code_of(caught.value) == Exit.NO_STACK
    assert {finding.id for finding in caught.value.findings} == {"file-conflict"}
    return caught.value.findings


def test_equal_files_are_fine(store: Store) -> None:
    check_overlaps([stored(store, name, {"nvidia/__init__.py": "", f"nvidia/{name}.so": name}) for name in ("cublas", "cudnn")], store)


def test_different_files_at_one_path_name_both_wheels(store: Store) -> None:
    one = stored(store, "opencv", {f"cv2/{n}.py": "gui" for n in range(5)})
    two = stored(store, "opencv-headless", {f"cv2/{n}.py": "plain" for n in range(5)})
    (finding,) = clashes(store, one, two)
    assert finding.what == "opencv and opencv-headless install different files at one path"
    assert finding.why.startswith("cv2/0.py, cv2/1.py, cv2/2.py and 2 more")


def test_a_file_where_another_wheel_has_a_folder(store: Store) -> None:
    (finding,) = clashes(store, stored(store, "a", {"thing": "x"}), stored(store, "b", {"thing/inside.py": "x"}))
    assert "thing" in finding.why


def test_scripts_and_data_land_where_the_installer_puts_them(store: Store) -> None:
    script = stored(store, "a", {"a-1.0.data/scripts/tool": "#!python\n", "a-1.0.data/data/share/x": "1"})
    check_overlaps([script, stored(store, "b", {"tool": "other"})], store)
    clashes(store, script, stored(store, "c", {}, "[console_scripts]\ntool = c:main\n"))
    clashes(store, script, stored(store, "d", {"d-1.0.data/data/share/x": "2"}))
    clashes(store, stored(store, "e", {"m.py": "1"}), stored(store, "f", {"f-1.0.data/purelib/m.py": "2"}))


def test_all_clashes_come_at_once(store: Store) -> None:
    wheels = [stored(store, name, {"shared.py": name}) for name in ("a", "b", "c")]
    assert len(clashes(store, *wheels)) == 2


def test_the_newest_date_in_a_wheel_is_read_as_utc(store: Store, tmp_path: Path) -> None:
    def dated(*date: int) -> int:
        path = tmp_path / "dated-1.0-py3-none-any.whl"
        path.write_bytes(make_wheel(path.name, date=date))  # type: ignore[arg-type]
        return wheel_date(path)

    assert dated(2026, 11, 23, 17, 45, 22) == 1795455922
    assert dated(1980, 1, 1, 0, 0, 0) == 315532800
    assert dated(2025, 2, 30, 0, 0, 0) == 0
    assert dated(2107, 12, 31, 23, 59, 58) == 0
    assert newest_date([], store) == 0
