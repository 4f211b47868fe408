"""Look at the report in a real browser: nothing runs, nothing overflows, no label is cut off."""

import html
import json
import re
import shutil
import subprocess

import pytest

from tunesmith.report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]

ATTACK = (
    "<script>document.documentElement.dataset.pwned='script'</script>"
    "<img src=x onerror=\"document.documentElement.dataset.pwned='img'\">"
    "<svg onload=\"document.documentElement.dataset.pwned='svg'\"></svg>"
)
CSP = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
# Opens every step first: closed ones are not laid out.
MEASURE = """
<script>
for (const one of document.querySelectorAll('details')) one.open = true;
const page = document.documentElement;
const inside = (box, of) => box.left >= of.left - 1 && box.right <= of.right + 1 && box.top >= of.top - 1
  && box.bottom <= of.bottom + 1;
const cut = [...document.querySelectorAll('svg text')].filter(one => one.getBoundingClientRect().width
  && !inside(one.getBoundingClientRect(), one.ownerSVGElement.getBoundingClientRect())).map(one => one.textContent);
const spilling = [...document.querySelectorAll('main *')].filter(one => !one.closest('.scroll') && !one.closest('svg')
  && one.getBoundingClientRect().right > page.clientWidth + 1).map(one => one.outerHTML.slice(0, 200));
page.setAttribute('data-measured', JSON.stringify({
  wide: page.scrollWidth, window: page.clientWidth, cut, spilling, pwned: page.dataset.pwned || '',
  style: getComputedStyle(document.body).backgroundColor}));
</script>
"""


def browse(path, tmp_path, width=1000, *, dark=False):
    """The page's DOM after it was laid out and its scripts, if any, had run."""
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900", "--dump-dom", path.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout


def measure(page, tmp_path, width, *, dark=False):
    """Measure a copy of the page whose policy lets the measuring script run, and so any other script too."""
    assert len(CSP.findall(page)) == 1
    path = tmp_path / "measured.html"
    path.write_text(CSP.sub("", page).replace("</body>", f"{MEASURE}</body>"))
    dom = browse(path, tmp_path, width, dark=dark)
    return json.loads(html.unescape(re.search(r'data-measured="([^"]*)"', dom)[1]))


@pytest.fixture
def page(build_run, request):
    kind = getattr(request, "param", "good")
    long = "x" * 3000 + " sha256:" + "0123456789abcdef" * 20
    answer = {"long": f"{ATTACK} {long}", "good": "Return x."}.get(kind, "Return x.")
    gpu = "NVIDIA-H100-80GB-HBM3-with-a-name-that-does-not-end" if kind == "long" else ""
    name = "llm-finetune-" + "a-very-long-name-" * 8 if kind == "long" else "llm-finetune-2026-12-01-09-30-00"
    root = build_run(name=name, failed=kind == "failed", answer=answer, gpu=gpu)
    return render(root, pipeline="llm-finetune" if kind != "long" else "p" * 200).html


@pytest.mark.parametrize("page", ["good", "failed", "long"], indirect=True)
@pytest.mark.parametrize("width", [600, 1000, 1600])
def test_nothing_overflows_and_no_label_is_cut_off(page, tmp_path, width):
    seen = measure(page, tmp_path, width)
    assert seen["window"] == width
    assert seen["wide"] <= seen["window"]
    assert seen["spilling"] == []
    assert seen["cut"] == []


@pytest.mark.parametrize("page", ["long"], indirect=True)
def test_a_script_in_an_answer_does_not_run_even_without_the_policy(page, tmp_path):
    assert html.escape(ATTACK, quote=False)[:30] in page, "the attack is shown, as text"
    assert measure(page, tmp_path, 800)["pwned"] == ""


@pytest.mark.parametrize("page", ["long"], indirect=True)
def test_the_policy_stops_a_script_that_got_into_the_page_all_the_same(page, tmp_path):
    path = tmp_path / "report.html"
    path.write_text(page.replace("</body>", f"{ATTACK}</body>"))
    dom = browse(path, tmp_path)
    assert "</html>" in dom
    assert not re.search(r"<html[^>]*data-pwned", dom)


def test_the_page_follows_light_and_dark(page, tmp_path):
    light, dark = (measure(page, tmp_path, 1000, dark=dark)["style"] for dark in (False, True))
    assert light != dark
