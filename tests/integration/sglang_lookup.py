"""Run in the build environment: SGLang's real loader, with its plugins loaded, asked for modules.

    python sglang_lookup.py REQUEST.json

Torch is stood in for as in the generator, so that a test needs none. The request names the recipe, the tree, the
toolkit that SGLang sees, the architecture's suffix and the modules; the answer is a JSON list of problems, empty
texts for what was found.
"""

import json
import logging
import sys
from pathlib import Path

request = json.loads(Path(sys.argv[1]).read_text())
sys.path.insert(0, request["recipe"])
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")

import standin  # noqa: E402

standin.machinery(
    Path(request["tree"]), capability="12.0", suffix=request["suffix"], cuda="13.0", cuda_home=request["cuda_home"]
)

import check  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402

load_plugins()
print(json.dumps([check.ask(spec) for spec in request["specs"]]))
