"""The page in a real browser: it is drawn, wide and narrow, without an error on its console."""

import shutil
import struct
import subprocess

import pytest
from sample_report import FAILING, NOT_RUN, report

from envlock.report_forms import to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.mark.parametrize("width", [1100, 500])
def test_the_page_is_drawn(tmp_path, width):
    (tmp_path / "report.html").write_text(to_html(report(FAILING, NOT_RUN)), encoding="utf-8")
    switches = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0")
    picture = tmp_path / "page.png"
    places = (f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", f"--window-size={width},1600")
    command = [CHROMIUM, *switches, *places, (tmp_path / "report.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ":CONSOLE" not in done.stderr
    raw = picture.read_bytes()
    assert struct.unpack(">II", raw[16:24]) == (width, 1600)
    # A blank page of this size packs to a few kilobytes.
    assert len(raw) > 40_000
