"""Several processes on one folder: leases, the worker pool, exit codes."""
