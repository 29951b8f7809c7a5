//! `gesta-rig`: the PostgreSQL server that all test processes of a run share; see [`gesta_rig::serve`].

fn main() -> gesta_rig::Result<()> {
    gesta_rig::serve()
}
