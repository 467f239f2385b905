"""A folder of runs as one report: page, tables and figures."""
