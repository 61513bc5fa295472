"""FlashInfer modules compiled in a container and on the host; the wheels image, and the example image made of it."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import container_demo as demo
import pytest

from smwheel.build.builderimage import LOCAL_BASE, _secrets
from smwheel.build.engine import Engine
from smwheel.errors import ContainerError
from smwheel.paths import data_dir

pytestmark = pytest.mark.integration

MODULES = "norm,silu_and_mul,page"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return demo.docker()


@pytest.fixture(scope="module")
def houses(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build the modules on both backends; return backend → wheelhouse."""
    root = tmp_path_factory.mktemp("flashinfer")
    for backend in ("docker", "host"):
        command = [*demo.program(), "build", "flashinfer", "--arch", "120", "--modules", MODULES, "--backend", backend]
        places = ["--work", str(root / "work"), "--wheelhouse", str(root / backend)]
        done = subprocess.run([*command, *places], capture_output=True, text=True, check=False, timeout=3000)
        assert done.returncode == 0, done.stderr
    return {backend: root / backend for backend in ("docker", "host")}


def inspected(house: Path) -> dict[str, dict[str, Any]]:
    """Return file in a wheel → its GPU code, of every wheel with libraries; keyed without what the label says."""
    found = {}
    for wheel in sorted(house.glob("flashinfer_jit_cache*.whl")):
        done = subprocess.run(
            [*demo.program(), "inspect", str(wheel), "--json"], capture_output=True, text=True, check=True
        )
        for one in json.loads(done.stdout)["inspected"]:
            found |= {library["name"]: library["code"] for library in one["libraries"]}
    return found


def members(house: Path) -> dict[str, list[str]]:
    return {
        wheel.name.partition("-")[0]: sorted(
            name.partition(".dist-info/")[2] or name for name in zipfile.ZipFile(wheel).namelist()
        )
        for wheel in house.glob("*.whl")
    }


def test_the_container_makes_what_the_host_makes(houses: dict[str, Path]) -> None:
    assert members(houses["docker"]) == members(houses["host"])
    code = inspected(houses["docker"])
    assert code == inspected(houses["host"])
    assert len(code) == 3
    assert all(set(kinds) == {"120f"} and sum(kinds.values()) >= 1 for kinds in code.values())


def test_what_the_container_made_verifies_and_was_made_without_a_network(houses: dict[str, Path]) -> None:
    wheels = [str(wheel) for wheel in houses["docker"].glob("flashinfer_jit_cache*.whl")]
    done = subprocess.run([*demo.program(), "verify", *wheels], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in houses["docker"].glob("evidence/flashinfer_jit_cache*/build.json"):
        assert json.loads(path.read_text())["network"] == "none"


@pytest.fixture
def tags(engine: Engine) -> Iterator[dict[str, str]]:
    names = {name: f"smwheel-test-{name}:ci" for name in ("wheels", "environment", "serving")}
    yield names
    for name in reversed(names.values()):
        subprocess.run(engine.command("rmi", "--force", name), env=engine.variables, capture_output=True, check=False)


def test_the_serving_example_is_made_of_the_wheels_image_with_no_network(
    tmp_path: Path, engine: Engine, houses: dict[str, Path], tags: dict[str, str]
) -> None:
    """PACKAGES is one that OURS names: a CUDA torch is 5.5 GB. So `import flashinfer` is named as not checked."""
    image = tmp_path / "image.tar"
    command = ["image", "--wheelhouse", str(houses["docker"]), "--arch", "120", "--tag", tags["wheels"]]
    subprocess.run([*demo.program(), *command, "--output", str(image)], check=True, capture_output=True)
    engine.call("load", "--input", str(image))
    loaded = engine.image(tags["wheels"])
    assert loaded is not None
    assert loaded.size < sum(wheel.stat().st_size for wheel in houses["docker"].glob("*.whl")) + (1 << 20)

    dockerfile = ["--file", str(data_dir() / "docker/serving.Dockerfile")]
    base = ["--build-arg", f"BASE_IMAGE={LOCAL_BASE}", "--build-arg", "COMPILERS=0"]
    packages = ["--build-arg", "PACKAGES=iniconfig packaging", "--build-arg", "OURS=iniconfig"]
    log = tmp_path / "log"
    arguments = [*dockerfile, *base, *packages, *_secrets(tmp_path), "--network", "host", "--target", "environment"]
    engine.build([*arguments, "--tag", tags["environment"], str(data_dir())], log, where="environment")
    listed = engine.call("run", "--rm", "--network", "none", tags["environment"], "pip", "list", "--format=freeze")
    assert "packaging==" in listed
    assert "iniconfig" not in listed, "what the wheels bring stays in the environment's layer"
    ours = ["--build-arg", f"WHEELS={tags['wheels']}", "--build-arg", f"ENVIRONMENT={tags['environment']}"]
    arguments = [*dockerfile, *ours, "--build-arg", "PARTIAL=1", "--network", "none", "--tag", tags["serving"]]
    engine.build([*arguments, str(data_dir())], log, where="serving")
    said = log.read_text()
    assert "flashinfer-jit-cache: import flashinfer_jit_cache: works" in said
    assert "import flashinfer: NOT CHECKED" in said

    with pytest.raises(ContainerError):
        engine.build([*dockerfile, *ours, "--network", "none", str(data_dir())], log, where="serving")
    assert "import flashinfer: FAILED: ModuleNotFoundError" in log.read_text()

    configured = json.loads(engine.call("image", "inspect", tags["serving"], "--format", "{{json .Config}}"))
    assert configured["User"] == "10001:10001"
    assert configured["Healthcheck"]["Test"][0] == "CMD"
    asked = "import flashinfer_jit_cache, os; print(os.getuid(), flashinfer_jit_cache.__version__)"
    answered = engine.call("run", "--rm", "--network", "none", "--entrypoint", "python", tags["serving"], "-c", asked)
    assert answered.startswith("10001 0.7.2+cu130.sm120f.custom.p")
