"""`python -m mtl`."""

from mtl.cli import main

raise SystemExit(main())
