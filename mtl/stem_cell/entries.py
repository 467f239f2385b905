"""What this package adds to the core: objects by registry and name, which are imported when they are used."""

from __future__ import annotations

ENTRIES = {
    "starts": {"clones": "mtl.stem_cell.clones_start:CLONES"},
    "preparations": {"clones": "mtl.stem_cell.claims_of_runs:CLAIMS"},
    "meters": {"gradient_conflict": "mtl.stem_cell.conflict_meter:CONFLICT"},
    "setups": {"twins": "mtl.stem_cell.names:twins"},
    "presets": {"control": "mtl.stem_cell.names:CONTROL"},
    "evidence": {"stem_cell": "mtl.stem_cell.evidence:EVIDENCE"},
    "mask_sources": {"overlap": "mtl.stem_cell.overlap:OVERLAP"},
}
