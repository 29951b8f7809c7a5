# Names what this clone can do; each recipe is one command, which also works without `just`. `scripts/tools` has a `just`,
# and `scripts/check-repository` checks that every script stands here, and every name here is a script.

# The list of these.
default:
    @just --list

# The exact tests alone, before each commit.
commit *arguments:
    scripts/run-tests --commit {{arguments}}

# What decides whether a change lands.
gate:
    .ci/run

# All tests, and what they need is installed first; `just test --deep` takes hours.
test *arguments:
    scripts/test {{arguments}}

# The tests without installing anything: all, or those of one crate (`just run-tests -p gesta-entity`).
run-tests *arguments:
    scripts/run-tests {{arguments}}

# What the tests need and this machine has not.
install *arguments:
    scripts/install {{arguments}}

# Directions of dependencies, circles of modules, licences, bans, doubles, sources, what is unused.
check-dependencies:
    scripts/check-dependencies

# What no compiler sees: this file, the CI file, SECURITY.md, the list of features, names of files and types.
check-repository:
    scripts/check-repository

# Each feature by itself, and the crates as they would be published.
check-crates:
    scripts/check-crates

# Does the runner of the tests find and tell failures?
plant-failures:
    scripts/plant-failures

# libFuzzer over what reads bytes of others: `just fuzz 600 grpc` for ten minutes of one target.
fuzz *arguments:
    scripts/fuzz {{arguments}}

# Micro benchmarks, each beside its figure at the commit before.
bench *names:
    scripts/bench {{names}}

# Does the simulation find planted faults?
plant-faults *arguments:
    scripts/plant-faults {{arguments}}

# The conformance suite on several versions of PostgreSQL.
test-postgres-versions *versions:
    scripts/test-postgres-versions {{versions}}

# The site of the pages, into target/site.
docs *arguments:
    scripts/docs {{arguments}}

# What users install, into dist.
release *arguments:
    scripts/release {{arguments}}

# What `release` has made, in fresh root folders.
test-release *arguments:
    scripts/test-release {{arguments}}

# The pages and figures of the benchmarks that the lab has measured.
benchmarks *arguments:
    scripts/benchmarks {{arguments}}

# The folder of the ready-made tools, for PATH.
tools:
    @scripts/tools

# Writes the listing of the library's public interface anew.
renew-api:
    GESTA_RENEW=1 cargo test -p gesta --test api

# Chaos: `just chaos --world nodes --rounds 20`.
chaos *arguments:
    cargo run --release -p gesta-chaos -- {{arguments}}

# A command of the lab: `just lab quick`, `just lab reservation --help`.
lab *arguments:
    cargo run --release -p gesta-lab -- {{arguments}}
