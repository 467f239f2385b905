"""The report on a folder of runs: page, tables and figures."""
