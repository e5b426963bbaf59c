"""Look into an artefact: ``python -m egraph.inspect model.einsat``."""

import sys

from egraph.inspect.command import main

sys.exit(main())
