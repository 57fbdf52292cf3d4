"""The report as a browser shows it (marker `browser`; needs Chromium)."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from recorded_run import EVIL, new_run, play, record, story

from whippletree.loop.evaluation import Heldout, evaluation_specs
from whippletree.loop.layout import Layout
from whippletree.store import open_store
from whippletree.types import Sampling
from whippletree.ui.report import write_report

pytestmark = pytest.mark.browser
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
)


@pytest.fixture
def browser(tmp_path: Path):
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is on PATH")

    def run(*arguments: str) -> str:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        done = subprocess.run([found, *FLAGS, profile, *arguments], capture_output=True, timeout=90, check=True)
        return done.stdout.decode()

    return run


def with_probe(page: Path, script: str) -> str:
    """A copy of the page beside it that answers in its title; its own policy forbids scripts, so that line is left out."""
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if "Content-Security-Policy" not in line]
    copy = page.with_name("probe.html")
    copy.write_text("\n".join(lines) + f"<script>addEventListener('load', () => {{ {script} }})</script>", encoding="utf-8")
    return copy.as_uri()


def test_the_report_shows_its_picture_and_fits_the_window(browser, tmp_path: Path):
    page, _ = write_report(record(tmp_path / "demo", steps=4, tasks=3).directory)
    script = (
        "const image = document.querySelector('img');"
        "document.title = [image.naturalWidth, image.naturalHeight, document.documentElement.scrollWidth <= innerWidth,"
        " document.querySelectorAll('.turn.assistant').length > 1].join(' ')"
    )
    assert "<title>1500 900 true true</title>" in browser("--window-size=1500,900", "--dump-dom", with_probe(page, script))
    assert "<title>1500 900 true true</title>" in browser("--window-size=700,900", "--dump-dom", with_probe(page, script))


def test_what_a_model_wrote_does_not_run(browser, tmp_path: Path):
    _, layout = new_run(tmp_path / "evil")
    with open_store(layout.store) as store:
        for step, solved in ((0, False), (4, True)):
            tasks = [Heldout(source="trail", task_id="t", task_path="/t", harness="mini-swe-agent")]
            specs = evaluation_specs(tasks, step=step, samples=1, sampling=Sampling(), max_attempts=1)
            play(
                store,
                specs,
                [story(2, solved=solved, text=EVIL + "<img src=x onerror=\"document.title='owned'\">")],
                version=step,
            )
    page, _ = write_report(Layout(layout.directory).directory)
    dom = browser("--dump-dom", page.as_uri())
    assert "<title>evil · Whippletree</title>" in dom
    assert "onerror" in dom  # as text
