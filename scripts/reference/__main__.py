"""Write all generated pages: `make reference`."""

from __future__ import annotations

from reference.pages import PAGES, ROOT

for path, text in PAGES.items():
    target = ROOT / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text(), encoding="utf-8")
