"""The cache outside of the clone: `$GESTA_CACHE`, or `gesta` among the caches of the user. It holds ready-made tools
(packages of PyPI, each list in a Python environment of its own), how long things took in earlier runs, and what cargo has
compiled of the dependencies, so that a clean clone need not compile them anew. Everything also works without what lies
there, only later.

Compiled dependencies are kept by a key: lock file, profiles, compiler and flags. Cargo itself decides what of it can be
used: each part has the fingerprint by which cargo compares.
"""
import fcntl, hashlib, json, os, pathlib, re, shutil, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
# What an environment has of its own, beside the programs of its packages.
OF_PYTHON = re.compile(r"(python|pip|activate)", re.I)
# The dependencies of so many keys are kept; those that were used least recently are removed.
KEYS_MAX = 3
FOLDERS = ["deps", "build", ".fingerprint"]
# A list of all files of a key with their sizes.
SIZES = "sizes.json"
HASH = re.compile(r"-([0-9a-f]{16})(?:\W|$)")
# Variables that change what cargo compiles.
VARIABLES = re.compile(r"^(RUSTFLAGS|CARGO_(ENCODED_RUSTFLAGS|INCREMENTAL|BUILD_.*|PROFILE_.*|TARGET_.*RUSTFLAGS)|CC|CFLAGS)$")


def folder():
    """The folder outside of the clone."""
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("GESTA_CACHE") or pathlib.Path(caches) / "gesta")


def environment(name):
    """The folder of a Python environment with the packages of `scripts/requirements/NAME.txt`, which name all that they
    need; made if this list is not installed yet. Its folder `programs` has what the packages install, and no Python: that
    would come before the system's in PATH.

    Ends this process if the packages cannot be had; the reason stands above.
    """
    requirements = ROOT / "scripts" / "requirements" / f"{name}.txt"
    key = [requirements.read_bytes(), sys.version.encode(), os.uname().machine.encode()]
    digest = hashlib.sha256(b"\0".join(key)).hexdigest()[:16]
    made = folder() / "environments" / f"{name}-{digest}"
    made.parent.mkdir(parents=True, exist_ok=True)
    with (made.parent / f"{name}.lock").open("w") as lock:
        # Another clone may be making it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (made / "programs").exists():
            shutil.rmtree(made, ignore_errors=True)
            pip = [made / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
            for command in [[sys.executable, "-m", "venv", made], [*pip, "--requirement", requirements]]:
                if subprocess.run(command, stdout=sys.stderr).returncode:
                    sys.exit(f"FAILED: {requirements} could not be installed; the first time it needs the network")
            # What is broken off has no such folder, and is made anew.
            begun = made / "programs.begun"
            begun.mkdir()
            for program in (made / "bin").iterdir():
                if not OF_PYTHON.match(program.name):
                    (begun / program.name).symlink_to(program)
            begun.rename(made / "programs")
    return made


def tools():
    """The folder of the ready-made tools."""
    return environment("tools") / "programs"


def folder_of_key():
    """Where the dependencies of this clone are kept."""
    compiler = subprocess.run(["rustc", "-vV"], check=True, capture_output=True).stdout
    variables = sorted(f"{name}={value}\n" for name, value in os.environ.items() if VARIABLES.match(name))
    parts = [pathlib.Path("Cargo.lock").read_bytes(), pathlib.Path("Cargo.toml").read_bytes(), compiler]
    digest = hashlib.sha256(b"\0".join([*parts, "".join(variables).encode()]))
    return folder() / "dependencies" / digest.hexdigest()[:16]


def harmless(function):
    """Keeps other runs away from the dependencies meanwhile. What goes wrong is told, and fails nothing."""

    def alone(*arguments):
        try:
            (folder() / "dependencies").mkdir(parents=True, exist_ok=True)
            with (folder() / "dependencies.lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return function(*arguments)
        except (OSError, ValueError, shutil.Error) as error:
            print(f"the cache of compiled dependencies is not used: {error}", flush=True)
            return False

    return alone


def sizes(folder):
    """The size of each file below a folder."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != SIZES]
    return {str(file.relative_to(folder)): file.stat().st_size for file in files}


@harmless
def restore(target):
    """Puts the dependencies into the folder of a build that has not begun; tells whether there were any."""
    source, debug, begun = folder_of_key(), target / "debug", target / "debug.restoring"
    if debug.exists() or not source.exists():
        return False
    if json.loads((source / SIZES).read_text()) != sizes(source):
        shutil.rmtree(source)
        raise OSError(f"{source} was damaged, and is removed")
    os.utime(source)
    # A restore that is broken off here begins anew.
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(source, begun, symlinks=True)
    begun.rename(debug)
    return True


@harmless
def save(messages, target):
    """Keeps the dependencies that cargo's messages name, if one of them was compiled and not found."""
    hashes, is_new = set(), False
    for message in messages:
        if message["reason"] not in ("compiler-artifact", "build-script-executed"):
            continue
        # Not the packages of this workspace: cargo tells whether they have changed by times, which mean nothing in
        # another clone.
        if not message["package_id"].startswith("registry+"):
            continue
        is_new |= not message.get("fresh", True)
        for file in [*message.get("filenames", []), message.get("out_dir", "")]:
            hashes |= set(HASH.findall(file))
    if not is_new:
        return
    place = folder_of_key()
    begun = place.with_name(f"{place.name}.new")
    shutil.rmtree(begun, ignore_errors=True)
    for name in FOLDERS:
        (begun / name).mkdir(parents=True)
        for entry in (target / "debug" / name).iterdir():
            if not hashes.isdisjoint(HASH.findall(entry.name)):
                copy = shutil.copytree if entry.is_dir() else shutil.copy2
                copy(entry, begun / name / entry.name)
    (begun / SIZES).write_text(json.dumps(sizes(begun)))
    shutil.rmtree(place, ignore_errors=True)
    begun.rename(place)
    for old in sorted(place.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)[:-KEYS_MAX]:
        shutil.rmtree(old, ignore_errors=True)
