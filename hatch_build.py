"""The kernel in what is installed: compiled into wheels, beside its source for editable installs."""

import importlib.util
import os
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):
    """Compiles ``planner/predict/kernel.c``; ``FLEETOPT_KERNEL=python`` leaves it out, and the wheel is for any machine.

    ``FLEETOPT_PLATFORM`` is the platform tag of a wheel for machines of another kind, which ``CC`` compiles for
    (``tools/release.py``).
    """

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.folder = None
        self.wanted = os.environ.get("FLEETOPT_KERNEL") != "python"
        # by its path: what the package itself needs is not there while it is built
        spec = importlib.util.spec_from_file_location("kernel_build", Path(self.root, "planner", "predict", "build.py"))
        self.build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.build)

    def dependencies(self):
        """A compiler that comes as a wheel, where the system has none that makes a library of a trifle and none is named.

        Some are there and only say how to install themselves (macOS), or lack the headers of C.
        """
        if not self.wanted or os.environ.get("CC"):
            return []
        with tempfile.TemporaryDirectory() as folder:
            trifle = Path(folder, "trifle.c")
            trifle.write_text(
                "#include <math.h>\n#include <stdlib.h>\nint trifle(void) { return 0; }\n", encoding="utf-8"
            )
            try:
                self.build.compiled(trifle)
            except self.build.BuildError:
                return ["ziglang"]
        return []

    def initialize(self, version, build_data):
        """Compile, and say that the wheel is for this kind of machine and any Python."""
        if not self.wanted:
            return
        source = self.build.SOURCE
        try:
            binary = self.build.compiled()
        except self.build.BuildError as error:
            self.app.abort(f"The kernel cannot be compiled: {error}. FLEETOPT_KERNEL=python installs without it.")
        if version == "editable":
            try:
                self.build.keep(binary, source, source.parent)
            except OSError as error:
                self.app.display_warning(f"{source.parent}: {error.strerror}; the kernel is built when it is used")
            return
        platform = os.environ.get("FLEETOPT_PLATFORM")
        suffix = {"win": ".dll", "mac": ".dylib"}.get(platform[:3], ".so") if platform else self.build.SUFFIX
        self.folder = tempfile.TemporaryDirectory()
        library = Path(self.folder.name, self.build.library_name(source, binary, suffix))
        library.write_bytes(binary)
        build_data["force_include"][str(library)] = f"planner/predict/{library.name}"
        build_data["pure_python"] = False
        platform = platform or self.build_config.builder.get_best_matching_tag().split("-")[2]
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version, build_data, artifact_path):
        """The wheel is written: what it was made of goes."""
        if self.folder is not None:
            self.folder.cleanup()
