"""The wheels made of the compiled modules, in the form that this version's loader wants.

Layout `single` (0.6): the module `flashinfer_jit_cache` holds the libraries itself. Layout `provider` (0.7): a
module `flashinfer_jit_cache` without libraries and a package with an entry point for each architecture. Source:
`flashinfer/jit/env.py` of each version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from generator.request import GeneratorError, Request

TEMPLATES = Path(__file__).resolve().parents[1] / "templates"


def products(request: Request) -> dict[str, Any]:
    """Return the response to `products`.

    Raises:
        GeneratorError: the label is one that the loader would refuse, a library is missing, or the recipe names
            no layout.

    """
    if not request.label.startswith(f"{request.version}+"):
        raise GeneratorError(
            f"FlashInfer {request.version} ignores modules of the version {request.label!r}: "
            f"it must be {request.version}+<label>"
        )
    missing = [str(library) for library in request.built.values() if not library.is_file()]
    if missing or not request.built:
        raise GeneratorError(f"nothing was built at {', '.join(missing) or 'all'}")
    match request.options.get("layout"):
        case "single":
            made = [_single(request)]
        case "provider":
            made = [_shim(request), _provider(request)]
        case layout:
            raise GeneratorError(f"the recipe's generator.layout is {layout!r}, not 'single' or 'provider'")
    return {"protocol": 1, "products": made}


def _single(request: Request) -> dict[str, Any]:
    return _product(
        request,
        "flashinfer-jit-cache",
        f"FlashInfer {request.version} modules compiled for sm_{request.arch.code}",
        [
            _template(request, "single.py", "flashinfer_jit_cache/__init__.py"),
            *_libraries(request, "flashinfer_jit_cache"),
        ],
    )


def _shim(request: Request) -> dict[str, Any]:
    return _product(
        request,
        "flashinfer-jit-cache",
        f"Finds the compiled modules of FlashInfer {request.version} that are installed",
        [_template(request, "shim.py", "flashinfer_jit_cache/__init__.py")],
        pure=True,
    )


def _provider(request: Request) -> dict[str, Any]:
    name = f"flashinfer_jit_cache_sm{request.arch.code}"
    distribution = name.replace("_", "-")
    manifest = {
        "schema_version": 1,
        "distribution": distribution,
        "version": request.label,
        "cuda_architectures": [f"sm{request.arch.code}"],
        "modules": sorted(request.built),
    }
    files = [
        _template(request, "provider.py", f"{name}/__init__.py"),
        {"path": f"{name}/manifest.json", "text": json.dumps(manifest, indent=1) + "\n"},
        *_libraries(request, name),
    ]
    product = _product(
        request,
        distribution,
        f"FlashInfer {request.version} modules compiled for sm_{request.arch.code}",
        files,
    )
    return product | {
        "requires": [f"flashinfer-jit-cache=={request.label}"],
        "entry_points": {"flashinfer.jit_cache.providers": {f"sm{request.arch.code}": f"{name}:provider"}},
    }


def _product(
    request: Request, distribution: str, summary: str, files: list[dict[str, str]], *, pure: bool = False
) -> dict[str, Any]:
    licences = [
        {"path": path, "from": str(request.source / path), "dist_info": "licenses"}
        for path in request.options.get("licences", ["LICENSE"])
    ]
    return {
        "distribution": distribution,
        "pure": pure,
        "summary": summary,
        "license": "Apache-2.0",
        "requires_python": request.options.get("requires_python", ">=3.10"),
        "requires": [],
        "entry_points": {},
        "files": files + licences,
    }


def _libraries(request: Request, package: str) -> list[dict[str, str]]:
    return [
        {"path": f"{package}/jit_cache/{name}/{name}.so", "from": str(library)}
        for name, library in sorted(request.built.items())
    ]


def _template(request: Request, name: str, path: str) -> dict[str, str]:
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    return {"path": path, "text": text.replace("@LABEL@", request.label).replace("@ARCH@", f"sm_{request.arch.code}")}
