"""A page in headless Chromium, at several widths: what it says, what sticks out. Installs the browser."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from lab import host

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]
# Each width is a frame: a window cannot be as narrow as a phone. What scrolls in itself may be wider than it shows.
LOOK = """
function look(frame) {
  const page = frame.contentDocument, root = page.documentElement;
  const inside = e => e.closest('.table, .wide, details:not([open])');
  const out = [...page.body.querySelectorAll('*')].filter(e => !inside(e) &&
    (e.getBoundingClientRect().right > root.clientWidth + 1 || e.getBoundingClientRect().left < -1));
  const images = [...page.images].map(i => ({alt: i.alt, shown: i.complete && i.naturalWidth > 0, width: i.clientWidth,
    inside: !!i.closest('.wide')}));
  return {width: root.clientWidth, scrolls: root.scrollWidth > root.clientWidth, images,
    out: out.map(e => e.outerHTML.slice(0, 90)),
    text: page.body.innerText};
}
window.onload = () => setTimeout(() => {
  document.getElementById('said').textContent = JSON.stringify([...document.querySelectorAll('iframe')].map(look));
}, 200);
"""


def browser() -> str:
    """The browser's path; it is installed where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        host.install_tools({"chromium": ("chromium", "chromium-browser")})
        found = shutil.which("chromium")
    assert found
    return found


def run(*words: str) -> str:
    """The browser with a profile of its own, bounded."""
    with tempfile.TemporaryDirectory() as profile:
        command = [browser(), *SWITCHES, f"--user-data-dir={profile}", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def look(page: Path, widths: tuple[int, ...], folder: Path) -> list[dict[str, Any]]:
    """What a page shows at each width: its text, its images, and what sticks out."""
    frames = "".join(
        f'<iframe width="{w}" height="900" srcdoc="{html.escape(page.read_text())}"></iframe>' for w in widths
    )
    file = folder / "frames.html"
    file.write_text(f'<!doctype html><meta charset="utf-8"><pre id="said"></pre>{frames}<script>{LOOK}</script>')
    dom = run("--virtual-time-budget=20000", "--window-size=1400,1000", "--dump-dom", f"file://{file}")
    said = re.search(r'<pre id="said">(.*?)</pre>', dom, re.S)
    assert said
    found: list[dict[str, Any]] = json.loads(html.unescape(said[1]))
    return found
