"""Both rank images from a base: the seven files patched, then those an image has stock put back. Into an OCI layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from gb10 import oci_build, patches
from gb10.findings import error, errors
from gb10.image_files import LayerWrong, image_files
from gb10.images import judge
from gb10.layout import Image, read_layout
from gb10.sources import SourceError


@dataclass(frozen=True)
class Recipe:
    """What to build, named as the variables are without ``images_``. ``patch_files``: name to path in the package."""

    source: str
    base: str
    base_name: str
    patch_source: str
    vllm_checkout: str
    vllm_commit: str
    site_packages: str
    patch_files: Mapping[str, str]
    patch_sha256: Mapping[str, Mapping[str, str]]
    stock_files: Mapping[str, list[str]]

    def path(self, name: str) -> str:
        """A patch file's place in an image."""
        return f"{self.site_packages}/{self.patch_files[name]}"


def build(recipe: Recipe) -> tuple[list[Image], bool]:
    """The images, and whether the layout changed. Everything is proved before a name is given.

    Raises patches.Refused and SourceError (one finding or more), OSError.
    """
    wrong = [
        f for f in fields(recipe) if not isinstance(getattr(recipe, f.name), Mapping if "Map" in str(f.type) else str)
    ]
    if wrong:
        message = f"images_{wrong[0].name} is {getattr(recipe, wrong[0].name)!r}."
        raise patches.Refused([error("build-setting-wrong", message, "See docs/images.md; quote a text.")])
    given = {"images_source": recipe.source, "images_base": recipe.base, "images_patch_source": recipe.patch_source}
    if any(recipe.stock_files.values()):
        given["images_vllm_checkout"] = recipe.vllm_checkout
    absent = [
        error("build-setting-missing", f"{n} is empty.", "Set it, or images_build: false.")
        for n in given
        if not given[n]
    ]
    plain = [name for name, stock in recipe.stock_files.items() if not stock]
    if len(plain) != 1:
        message = f"images_stock_files has {len(plain)} images without stock files; one is built on the base."
        absent.append(error("build-setting-missing", message, "Name one image with an empty list."))
    if absent:
        raise patches.Refused(absent)
    sums, names = recipe.patch_sha256, list(recipe.patch_files)
    patched = patches.patched(recipe.patch_source, names, sums)
    put_back = sorted({name for stock in recipe.stock_files.values() for name in stock})
    paths = {name: recipe.patch_files[name] for name in put_back}
    stock = patches.stock(recipe.vllm_checkout, recipe.vllm_commit, paths, sums) if put_back else {}
    root = Path(recipe.source).expanduser()
    try:
        before = read_layout(recipe.source) if (root / "index.json").exists() else {}
        oci_build.start(root)
        base = oci_build.bring_base(recipe.base, recipe.base_name, root)
        lacking = [
            path
            for path in map(recipe.path, names)
            if path not in image_files(recipe.source, base, map(recipe.path, names))
        ]
        if lacking:
            message = f"{base.name} has no {lacking[0]}: nothing there would be replaced."
            raise SourceError(error("build-base", message, "Correct images_site_packages or images_patch_files."))
        made = [
            oci_build.extend(root, base, plain[0], {recipe.path(n): patched[n] for n in names}, "gb10: patched files")
        ]
        for name, files in recipe.stock_files.items():
            if files:
                content = {recipe.path(n): stock[n] for n in files}
                made.append(oci_build.extend(root, made[0], name, content, "gb10: stock files put back"))
        for image in made:
            check(recipe, image)
    except (oci_build.BaseWrong, LayerWrong) as problem:
        raise SourceError(error("build-base", f"{problem}.", "See docs/images.md for what a base is.")) from None
    changed = any(before.get(image.name) != image for image in made)
    if changed:
        oci_build.put_names(root, made)
    return made, changed


def check(recipe: Recipe, image: Image) -> None:
    """What was built is what was meant. Raises Refused."""
    paths = {name: recipe.path(name) for name in recipe.patch_files}
    files = image_files(recipe.source, image, paths.values())
    found = errors(judge(image, files, paths, recipe.stock_files[image.name], recipe.patch_sha256))
    if found:
        raise patches.Refused(found)
