"""Asking the package itself, before its wheels enter the wheelhouse, whether its own loader finds what was built.

The recipe's check script (`docs/check-protocol.md`) runs in the build environment, with the wheels unpacked on its path
and neither compiler nor network. A build environment may hold a stand-in for torch: what is proven is that
the loader finds every module and that those load, not that the package imports beside the real torch.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from smwheel.build.sandbox import BUILD_ID, die_with_parent
from smwheel.errors import VerifyError, VerifyIncompleteError
from smwheel.pipeline import Prepared
from smwheel.wheels.wheelfile import Wheel

SECONDS = 600.0
"""How long the script may take."""


def ask_package(prepared: Prepared, wheels: list[Path]) -> dict[str, Any] | None:
    """Return the script's answer about these wheels; None if the recipe has no script for the build environment.

    Raises:
        VerifyError: the package does not find or load what was built.
        VerifyIncompleteError: the script gave no answer.
    """
    site, data = prepared.site, prepared.site.resolution.data
    if not data.check or not site.build.check_here:
        return None
    script = site.resolution.recipe.directory / data.check
    with tempfile.TemporaryDirectory(dir=site.work / "tmp", prefix="asked-") as scratch:
        unpacked = Path(scratch) / "site"
        for path in wheels:
            with Wheel(path) as wheel:
                wheel.extract(unpacked)
        inside = site.sandbox.inside
        python_path = [inside(unpacked), *(inside(script.parent / path) for path in site.build.check_here)]
        command = [inside(site.environment.python), inside(script), "--gpu", site.resolution.arch.capability]
        command += ["--arch", site.resolution.arch.dotted]
        done = subprocess.run(
            site.sandbox.wrap(command, cwd=Path(scratch)),
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": inside(Path(scratch)),
                # The wheels leave CUDA's libraries to torch, and the build environment may have none.
                "LD_LIBRARY_PATH": f"{inside(site.toolchain.home)}/lib64",
                "PYTHONPATH": ":".join(python_path),
                "PYTHONDONTWRITEBYTECODE": "1",
                BUILD_ID: site.build_id,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=SECONDS,
            preexec_fn=die_with_parent,
        )
    return _answer(done, script.name)


def _answer(done: subprocess.CompletedProcess[str], script: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        problems = [each for each in answer["modules"] if each["problem"]]
    except (ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise VerifyIncompleteError(f"the package could not be asked: {last}", where=script) from None
    if problems or done.returncode != 0:
        first = problems[0] if problems else {"module": "the script", "problem": f"ended with {done.returncode}"}
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise VerifyError(f"{first['module']}: {first['problem']}{more}", where=script)
    return answer
