"""Run `smwheel doctor` on a machine with an H200 (or another Hopper GPU), torch 2.11 and CUDA 13.

    .venv/bin/python ci/gpu/doctor_h200.py prepare FOLDER --wheel sglang_kernel-0.4.5-….whl [--python 3.12]   # here
    python3 ci/gpu/doctor_h200.py run FOLDER OUT                                                              # there

`prepare` puts what smwheel needs for the other machine's Python, and that wheel cut to sm_120a and to sm_90a (without
FlashAttention, 212 MB), into FOLDER: about 35 MB. `run` needs no network. It examines that machine's own environment,
then with each wheel beside it, and ends with 0 only if doctor sees the GPU, finds nothing wrong there, refuses the
sm_120a wheel before anything is loaded, and finds nothing wrong with the sm_90a wheel, whose import works. OUT gets
`doctor.json`, with all that was said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "ci/requirements/run.in"


def prepare(folder: Path, wheel: Path, python: str) -> None:
    """Write `packages/`, and the cut wheels as `120a.whl` and `90a.whl`, into the folder."""
    from smwheel.arch import Arch  # noqa: PLC0415  # not on the GPU machine
    from smwheel.wheels import rules  # noqa: PLC0415
    from smwheel.wheels.thin import thin_wheel  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", python]
    subprocess.run([*pip, "-d", str(folder / "packages"), "-r", str(RUN)], check=True)
    found = rules.recipe_of(wheel)
    if found is None:
        sys.exit(f"{wheel}: no recipe pins this file")
    for gpu in ("120", "90"):
        rule = rules.rules_for(*found, Arch.parse(gpu))
        rule = replace(rule, drop=rule.drop | {"*/flash*_ops.*": "too large to carry"})
        thin_wheel(wheel, folder, Arch.parse(gpu), rules=rule).wheel.rename(folder / f"{gpu}a.whl")


def run(folder: Path, out: Path) -> int:
    """Examine three environments; return the exit status."""
    said: dict[str, Any] = {}
    for wheel in folder.glob("packages/*.whl"):
        _unzip(wheel, folder / "packages")
    python = subprocess.run(["which", "python3"], capture_output=True, text=True, check=True).stdout.strip()
    said["as it is"] = doctor(folder, python)
    for gpu in ("120a", "90a"):
        site = folder / f"site-{gpu}"
        _unzip(folder / f"{gpu}.whl", site)
        said[gpu] = doctor(folder, python, "--import", beside=site)
    out.mkdir(parents=True, exist_ok=True)
    (out / "doctor.json").write_text(json.dumps(said, indent=1))
    checks = {
        "it sees the GPU": bool(said["as it is"]["machine"]["gpus"]),
        "nothing is wrong with the machine's own environment": said["as it is"]["exit_code"] == 0,
        "the sm_120a wheel is refused": said["120a"]["exit_code"] == 19
        and said["120a"]["findings"][0]["code"] == "D301"
        and "holds code for sm_120a" in said["120a"]["sentence"],
        "the sm_90a wheel is fine": said["90a"]["exit_code"] == 0,
    }
    for name, report in said.items():
        print(f"{name} ({report['seconds']:.1f} s): {report['sentence']}")
        for one in [*report["findings"][1:], *report["not_looked_at"]]:
            print(f"    {one['sentence'] if isinstance(one, dict) else one}")
    for what, passed in checks.items():
        print(f"{'passed' if passed else 'FAILED'}  {what}")
    return 0 if all(checks.values()) else 1


def _unzip(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def doctor(folder: Path, python: str, *options: str, beside: Path | None = None) -> dict[str, Any]:
    """Return what doctor says of an interpreter, with a directory of packages before its own."""
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}, {str(folder / 'packages')!r}]; "
        "from smwheel.cli import main; main()"
    )
    environment = {**os.environ, "PYTHONPATH": str(beside)} if beside else dict(os.environ)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, "doctor", "--python", python, "--json", *options],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    try:
        return {**json.loads(done.stdout), "seconds": time.monotonic() - started}
    except ValueError:
        sys.exit(done.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("out"))
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--python", default="3.12")
    given = parser.parse_args()
    if given.what == "prepare":
        prepare(given.folder, given.wheel, given.python)
    else:
        sys.exit(run(given.folder.absolute(), given.out))
