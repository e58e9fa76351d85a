"""Installs a build into an empty folder, and builds and runs the examples against it, outside this tree: the C one with
pkg-config (shared, and with the static library), the C++ one and a C one with find_package.

    install_test.py SOURCE_DIR BUILD_DIR
"""

import os
import shutil
import subprocess
import sys
import tempfile

CONSUMER = """cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES {languages})
find_package(ringfold 0.1 REQUIRED {components})
add_executable(example {source})
target_link_libraries(example PRIVATE {target})
"""


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"install: {' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Trial:
    def __init__(self, source, build, folder):
        self.source, self.build, self.folder = source, build, folder
        self.prefix = os.path.join(folder, "prefix")
        self.cache = {}
        with open(os.path.join(build, "CMakeCache.txt"), encoding="utf-8") as file:
            for line in file:
                if ":" in line and "=" in line and not line.startswith(("#", "//")):
                    name, _, value = line.strip().partition("=")
                    self.cache[name.split(":")[0]] = value

    def example(self, name):
        """A copy, so that no include path of the tree can help."""
        return shutil.copy(os.path.join(self.source, "examples", name), self.folder)

    def install(self):
        run(["cmake", "--install", self.build, "--prefix", self.prefix])
        self.libdir = os.path.join(self.prefix, self.cache.get("CMAKE_INSTALL_LIBDIR", "lib"))
        for path in ("libringfold.a", "libringfold.so", "libringfold.so.1", "pkgconfig/ringfold.pc",
                     "cmake/ringfold/ringfoldConfig.cmake", "cmake/ringfold/ringfoldConfigVersion.cmake"):
            if not os.path.exists(os.path.join(self.libdir, path)):
                sys.exit(f"install: expected {path} in {self.libdir}, found none")
        headers = sorted(os.listdir(os.path.join(self.source, "include", "ringfold")))
        if sorted(os.listdir(os.path.join(self.prefix, "include", "ringfold"))) != headers:
            sys.exit("install: expected every header of include/ringfold, found others")

    def pkg_config(self, *arguments):
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.join(self.libdir, "pkgconfig"))
        return run(["pkg-config", *arguments, "ringfold"], env=environment).split()

    def check_run(self, program, expected, library_path):
        environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        if library_path:
            environment["LD_LIBRARY_PATH"] = library_path
        printed = run([program], env=environment, cwd=self.folder)
        if expected not in printed:
            sys.exit(f"install: {program}: expected '{expected}', found '{printed}'")
        print(f"install: {os.path.relpath(program, self.folder)}: {printed.strip()}")

    def c_by_pkg_config(self):
        source, program = self.example("c_step.c"), os.path.join(self.folder, "c_shared")
        strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
        run(["cc", *strict, source, *self.pkg_config("--cflags", "--libs"), "-o", program])
        self.check_run(program, "equal plain decoding", self.libdir)
        # The static library: named by its path, since -lringfold prefers the shared one.
        program = os.path.join(self.folder, "c_static")
        others = [flag for flag in self.pkg_config("--static", "--libs") if flag != "-lringfold"]
        run(["cc", *strict, source, *self.pkg_config("--cflags"), os.path.join(self.libdir, "libringfold.a"), *others,
             "-o", program])
        if "libringfold" in run(["readelf", "-d", program]):
            sys.exit("install: expected a program without libringfold.so")
        self.check_run(program, "equal plain decoding", None)
        if self.pkg_config("--modversion") != [self.cache["CMAKE_PROJECT_VERSION"]]:
            sys.exit("install: the version of ringfold.pc is not that of the project")

    def by_find_package(self, name, source, languages, target, components, expected):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder)
        shutil.copy(self.example(source), folder)
        with open(os.path.join(folder, "CMakeLists.txt"), "w", encoding="utf-8") as file:
            file.write(CONSUMER.format(languages=languages, source=source, target=target, components=components))
        build = os.path.join(folder, "build")
        run(["cmake", "-G", "Ninja", "-S", folder, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
             "-DCMAKE_BUILD_TYPE=Release"])
        run(["cmake", "--build", build])
        self.check_run(os.path.join(build, "example"), expected, None)


def main():
    source, build = (os.path.abspath(path) for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(source, build, folder)
        trial.install()
        trial.c_by_pkg_config()
        trial.by_find_package("cxx", "engine_loop.cc", "CXX", "ringfold::ringfold", "", "text and states identical")
        trial.by_find_package("c", "c_step.c", "C", "ringfold::c", "COMPONENTS c", "equal plain decoding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
