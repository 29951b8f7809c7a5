//! `gesta-pgtest`: the PostgreSQL server that all test processes of a run share; see [`gesta_pgtest::serve`].

fn main() -> gesta_pgtest::Result<()> {
    gesta_pgtest::serve()
}
