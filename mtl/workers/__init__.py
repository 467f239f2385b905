"""Several processes on one folder: leases, a queue of jobs, and the processes that work on it."""
