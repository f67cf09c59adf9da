"""Imported by each Python that starts with this folder on its path: audits its event loops."""

import os
import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1]))

if report := os.environ.get("LOOP_AUDIT_REPORT"):
    import loop_audit_kit

    loop_audit_kit.install_into(report)
