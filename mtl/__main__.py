"""`python -m mtl`."""

from mtl.commands.main import main

raise SystemExit(main())
