"""Imported by each Python that starts with this folder on its path: audits its event loops."""

import os

if report := os.environ.get("LOOP_AUDIT_REPORT"):
    from tests.loops import loop_audit_kit

    loop_audit_kit.install_into(report)
