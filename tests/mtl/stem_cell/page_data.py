"""What the parts of a page are made from."""

from __future__ import annotations

from mtl.probes.report.claims import claims_of
from mtl.probes.report.data import ReportData
from mtl.probes.report.overlaps import masks_by_setup
from mtl.probes.report.page_part import PageData


def page_data(data: ReportData) -> PageData:
    """With the claims of the default setup."""
    by_setup, _ = masks_by_setup(data)
    return PageData(data, by_setup, claims_of(data.setups, by_setup))
