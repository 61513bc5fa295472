"""The gate of the wheelhouse: what a wheel must be, checked one sentence at a time.

`verify_wheel` makes every static check of one wheel; each check is a function registered in one of the modules
here under a stable code: W1 contents, W2 GPU code, W3 libraries, W4 binary interfaces, W5 platform, W6 import,
W7 sizes, W8 against the original. `docs/checks.md` lists them.
"""

from smwheel.verify.expectations import Expectations, gather
from smwheel.verify.runner import Imports, judge, verify_wheel
from smwheel.verify.verdict import Level, Problem, Result, Status, Verdict

__all__ = [
    "Expectations",
    "Imports",
    "Level",
    "Problem",
    "Result",
    "Status",
    "Verdict",
    "gather",
    "judge",
    "verify_wheel",
]
