"""Which tests run when, as `.config/nextest.toml` says it, held against docs/internals/tiers.md; and the clocks in
exact tests. `scripts/check-repository` calls both.

A test that is in no group of cargo-nextest is *exact*, and belongs to the tier commit. Those of a group begin in the
tier gate. What only the deep form runs is named in the default filter.
"""
import os, pathlib, re, tomllib

PAGE = pathlib.Path("docs/internals/tiers.md")
CONFIGURATION = pathlib.Path(".config/nextest.toml")
# How often the sources of exact tests ask a clock or sleep, where they do. The numbers may only become smaller.
CLOCKS = pathlib.Path(".config/clocks-in-exact-tests.txt")
CLOCK = re.compile(r"\bsleep(?:_until)?\(|\bInstant::now\(\)")
# Where tokio's time is paused, its clock and its sleep take no time.
PAUSES = re.compile(r"start_paused|time::pause\(")
REAL_CLOCK = re.compile(r"\bthread::sleep\(|\bstd::time::Instant::now\(\)")
TEST_ITEM = re.compile(r"^( *)#\[cfg\((?:any\()?test\b[^\n]*\n.*?^\1(?:\}[^\n]*|[^ \n#][^\n]*;)$", re.M | re.S)
# Libraries of exact tests: all of their source counts.
LIBRARIES = ["proof/fuzz/src", "proof/kit/src", "proof/sim/src"]


class Program:
    """A program of tests: its name as cargo-nextest knows it, where it lies, and which of its tests are in a group."""

    def __init__(self, package, name, path):
        self.package, self.name, self.path = package, name, path
        # The filters of the tests that are in a group; an empty one is of all.
        self.groups = []

    def is_exact(self):
        return not self.groups

    def is_grouped(self):
        return "" in self.groups

    def begins_in(self):
        return {"commit"} if self.is_exact() else {"gate"} if self.is_grouped() else {"commit", "gate"}


def configuration():
    return tomllib.loads(CONFIGURATION.read_text())


def programs(manifests):
    """All programs of tests of these manifests (by their paths), each with its groups."""
    found = []
    for root, manifest in manifests.items():
        package = manifest["package"]["name"]
        has_tests = any(re.search(r"#\[(tokio::)?test\b|proptest!", file.read_text()) for file in (root / "src").rglob("*.rs"))
        if has_tests and manifest.get("lib", {}).get("test", True):
            found.append(Program(package, package, root / "src"))
        found += [Program(package, f"{package}::{path.stem}", path) for path in (root / "tests").glob("*.rs")]
        found += [Program(package, f"{package}::{path.parent.name}", path.parent) for path in (root / "tests").glob("*/main.rs")]
        benches = [bench["name"] for bench in manifest.get("bench", []) if bench.get("test")]
        found += [Program(package, f"{package}::bench/{name}", root / "benches" / f"{name}.rs") for name in benches]
    for override in configuration()["profile"]["default"]["overrides"]:
        for part in re.split(r"\|(?![^(]*\))", override["filter"]):
            add_group(found, part.strip())
    return found


def add_group(found, part):
    """Notes the tests that a part of a filter selects."""
    kind, wanted, rest = re.fullmatch(r"(binary_id|package)\((.*?)\)(?: & (.*))?", part, re.S).groups()
    for program in found:
        name = program.name if kind == "binary_id" else program.package
        is_regular = wanted.startswith("/")
        if not (re.search(wanted.strip("/"), name) if is_regular else name == wanted):
            continue
        if rest == "kind(test)":
            if "::" in program.name:
                program.groups.append("")
        else:
            program.groups.append(re.fullmatch(r"test\(/(.*)/\)", rest)[1] if rest else "")


def rows():
    """The rows of the page's first table: what stands in code there, and in which tiers it begins."""
    table = PAGE.read_text().partition("| kind | where | begins in |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        _, kind, where, begins, _ = (cell.strip() for cell in line.split("|"))
        yield kind, re.findall(r"`([^`]+)`", where), set(begins.split(", "))


def covers(place, path):
    """Whether a place, which may have a star, holds a path, and how exactly: the number of its parts."""
    parts, of_path = pathlib.PurePath(place).parts, path.parts
    if len(parts) > len(of_path):
        return 0
    same = all(re.fullmatch(re.escape(part).replace(r"\*", "[^/]*"), other) for part, other in zip(parts, of_path))
    return len(parts) if same else 0


def check_page(manifests):
    """What the page says that is not so."""
    problems, table = [], list(rows())
    if not table:
        return [f"{PAGE}: has no table"]
    begins = {kind: set() for kind, _, _ in table}
    for program in programs(manifests):
        fits = [(covers(place, program.path), kind) for kind, places, _ in table for place in places]
        exactness, kind = max(fits)
        if exactness == 0:
            problems.append(f"{PAGE}: no row has {program.name} ({program.path})")
        else:
            begins[kind] |= program.begins_in()
    for kind, places, said in table:
        if begins[kind] and begins[kind] != said:
            problems.append(f"{PAGE}: {kind}: begins in {', '.join(sorted(begins[kind]))}, not in {', '.join(sorted(said))}")
        problems += [
            f"{PAGE}: {kind}: there is no {place}"
            for place in places
            if "/" in place and not list(pathlib.Path().glob(place))
        ]
    problems += check_scripts(table)
    text = PAGE.read_text()
    only_deep = set(re.findall(r"binary_id\(([\w:-]+)\)", configuration()["profile"]["default"]["default-filter"]))
    problems += [f"{PAGE}: does not say that a part of {name} runs only at night" for name in sorted(only_deep) if name not in text]
    return problems


def check_scripts(table):
    """Every script that the gate or the night calls has a row, and stands in the right one."""
    gate = set(re.findall(r"^\./(scripts/[\w-]+)", pathlib.Path(".ci/run").read_text(), re.M))
    deep = pathlib.Path("scripts/test").read_text().partition("= --deep ]; then\n    ")[2].partition("\nfi")[0]
    night = set(re.findall(r"\./(scripts/[\w-]+)", deep))
    # What only prepares, and what runs the tests themselves.
    own = {"scripts/install", "scripts/test", "scripts/run-tests"}
    wanted = {script: {"night"} for script in night - own} | {script: {"gate"} for script in gate - own}
    said = {place: tiers for _, places, tiers in table for place in places if place.startswith("scripts/")}
    return [
        f"{PAGE}: {script} begins in {', '.join(wanted.get(script, {'no tier'}))}, not in {', '.join(said.get(script, {'no row'}))}"
        for script in sorted(wanted.keys() | said.keys())
        if wanted.get(script) != said.get(script)
    ]


def exact_sources(manifests):
    """Each file with exact tests, or for them, and the part of its text that is for tests."""
    found = programs(manifests)
    for root in manifests:
        of_root = [program for program in found if program.path.is_relative_to(root)]
        for path in sorted((root / "tests").rglob("*.rs")):
            # A folder with a manifest is a program that tests compile.
            is_own = any((parent / "Cargo.toml").exists() for parent in path.parents if parent.is_relative_to(root / "tests"))
            if not is_own and is_exact(path, root / "tests", of_root):
                yield path, path.read_text()
        unit = [program for program in of_root if program.path == root / "src"]
        if str(root / "src") in LIBRARIES:
            yield from ((path, path.read_text()) for path in sorted((root / "src").rglob("*.rs")))
        elif unit and unit[0].is_exact():
            for path in sorted((root / "src").rglob("*.rs")):
                is_tests = path.stem == "tests" or "tests" in path.relative_to(root / "src").parts
                text = path.read_text()
                yield path, text if is_tests else "\n".join(item[0] for item in TEST_ITEM.finditer(text))


def is_exact(path, tests, found):
    """Whether a file below a folder of tests is part of an exact one."""
    place = path.relative_to(tests).parts
    own = [program for program in found if program.path in (tests / place[0], tests / f"{place[0]}.rs", path)]
    if not own:
        # Shared by several programs.
        return any(program.path.is_relative_to(tests) and not program.is_grouped() for program in found)
    module = place[1].removesuffix(".rs") if len(place) > 1 else ""
    return not any(re.search(pattern, f"{module}::") for pattern in own[0].groups)


def counted(manifests):
    """How often each file of exact tests sleeps or asks a clock, if it does."""
    found = {}
    for path, text in exact_sources(manifests):
        text = re.sub(r"//.*$", "", text, flags=re.M)
        count = len((REAL_CLOCK if PAUSES.search(path.read_text()) else CLOCK).findall(text))
        if count:
            found[str(path)] = count
    return found


def check_clocks(manifests):
    """What exact tests know of clocks beyond what is listed, and what is listed and has gone. With GESTA_RENEW the list
    is written anew."""
    lines, now = CLOCKS.read_text().splitlines(), counted(manifests)
    if os.environ.get("GESTA_RENEW"):
        head = [line for line in lines if line.startswith("#")]
        CLOCKS.write_text("\n".join([*head, *(f"{now[path]:3} {path}" for path in sorted(now))]) + "\n")
        return []
    entries = (line.split() for line in lines if line and not line.startswith("#"))
    then = {path: int(count) for count, path in entries}
    problems = []
    for path in sorted(now.keys() | then.keys()):
        more = now.get(path, 0) - then.get(path, 0)
        if more > 0:
            problems.append(f"{path}: sleeps or asks a clock {more} times more than {CLOCKS} lists: exact tests know no clock")
        elif more < 0:
            problems.append(f"{CLOCKS}: {path} needs {-more} less: GESTA_RENEW=1 scripts/check-repository writes the list anew")
    return problems
