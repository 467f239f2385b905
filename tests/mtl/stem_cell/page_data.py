"""What the parts of a page are made from."""

from __future__ import annotations

from mtl.probes.report.data import ReportData, claims_of
from mtl.probes.report.page_part import PageData
from mtl.probes.report.report import masks_by_setup


def page_data(data: ReportData) -> PageData:
    """With the claims of the default setup."""
    by_setup, _ = masks_by_setup(data)
    return PageData(data, by_setup, claims_of(data.setups, by_setup))
