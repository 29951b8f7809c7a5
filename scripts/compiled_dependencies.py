"""Keeps what cargo has compiled of the dependencies in a folder outside of the clone, so that a clean clone need not
compile them anew. Everything also works without that folder, only later.

The folder is `$GESTA_CACHE`, or `gesta` among the caches of the user. What lies there is kept by a key: lock file, profiles,
compiler and flags. Cargo itself decides what of it can be used: each part has the fingerprint by which cargo compares.
"""
import hashlib, os, pathlib, re, shutil, subprocess

# So many keys are kept; those that were used least recently go.
KEYS_MAX = 3
FOLDERS = ["deps", "build", ".fingerprint"]
HASH = re.compile(r"-([0-9a-f]{16})(?:\W|$)")
# Variables that change what cargo compiles.
VARIABLES = re.compile(r"^(RUSTFLAGS|CARGO_(ENCODED_RUSTFLAGS|INCREMENTAL|BUILD_.*|PROFILE_.*|TARGET_.*RUSTFLAGS)|CC|CFLAGS)$")


def cache():
    """The folder outside of the clone."""
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("GESTA_CACHE") or pathlib.Path(caches) / "gesta")


def kept():
    """Where the dependencies of this clone are kept."""
    compiler = subprocess.run(["rustc", "-vV"], check=True, capture_output=True).stdout
    variables = sorted(f"{name}={value}\n" for name, value in os.environ.items() if VARIABLES.match(name))
    parts = [pathlib.Path("Cargo.lock").read_bytes(), pathlib.Path("Cargo.toml").read_bytes(), compiler]
    digest = hashlib.sha256(b"\0".join([*parts, "".join(variables).encode()]))
    return cache() / "dependencies" / digest.hexdigest()[:16]


def restore(target):
    """Puts the dependencies into the folder of a build that has not begun; says whether there were any."""
    source, debug = kept(), target / "debug"
    if debug.exists() or not source.exists():
        return False
    os.utime(source)
    # A build that is broken off here begins anew.
    begun = target / "debug.restoring"
    shutil.rmtree(begun, ignore_errors=True)
    shutil.copytree(source, begun, symlinks=True)
    begun.rename(debug)
    return True


def save(messages, target):
    """Keeps the dependencies that cargo's messages name, if one of them was compiled and not found."""
    hashes, is_new = set(), False
    for message in messages:
        if message["reason"] not in ("compiler-artifact", "build-script-executed"):
            continue
        # Those of this workspace have the path of the clone in their names.
        if not message["package_id"].startswith("registry+"):
            continue
        is_new |= not message.get("fresh", True)
        for file in [*message.get("filenames", []), message.get("out_dir", "")]:
            hashes |= set(HASH.findall(file))
    if not is_new:
        return
    place = kept()
    begun = place.with_name(f"{place.name}.{os.getpid()}")
    for folder in FOLDERS:
        (begun / folder).mkdir(parents=True)
        for entry in (target / "debug" / folder).iterdir():
            if not hashes.isdisjoint(HASH.findall(entry.name)):
                copy = shutil.copytree if entry.is_dir() else shutil.copy2
                copy(entry, begun / folder / entry.name)
    shutil.rmtree(place, ignore_errors=True)
    begun.rename(place)
    for old in sorted(place.parent.iterdir(), key=lambda entry: entry.stat().st_mtime)[:-KEYS_MAX]:
        shutil.rmtree(old, ignore_errors=True)
