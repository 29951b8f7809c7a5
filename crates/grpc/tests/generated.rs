//! The code of the messages is what their schema makes. `GESTA_GENERATE=1` writes it anew.

use std::path::Path;

use prost::Message;

/// The schema, in the order in which it is read best.
const FILES: [&str; 14] = [
    "shared.proto",
    "rpc.proto",
    "server_features.proto",
    "gossip.proto",
    "streams.proto",
    "persistent.proto",
    "streams_v2.proto",
    "errors_v2.proto",
    "errors_server.proto",
    "monitoring.proto",
    "users.proto",
    "operations.proto",
    "projections.proto",
    "health.proto",
];

#[test]
fn the_code_of_the_messages_is_what_their_schema_makes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = tempfile::tempdir().expect("a directory");
    let descriptors =
        protox::compile(FILES, [root.join("proto")]).expect("a schema without errors");
    prost_build::Config::new()
        .out_dir(made.path())
        .bytes(["."])
        .btree_map([".event_store", ".kurrentdb", ".google.rpc"])
        .include_file("mod.rs")
        .compile_fds(
            prost_types::FileDescriptorSet::decode(descriptors.encode_to_vec().as_slice())
                .expect("descriptors"),
        )
        .expect("code");
    let kept = root.join("src/generated");
    let names = |at: &Path| {
        let entries = std::fs::read_dir(at).expect("a directory");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        names.sort();
        names
    };
    if std::env::var_os("GESTA_GENERATE").is_some() {
        std::fs::remove_dir_all(&kept).ok();
        std::fs::create_dir_all(&kept).expect("a directory");
        for name in names(made.path()) {
            std::fs::copy(made.path().join(&name), kept.join(&name)).expect("a copy");
        }
    }
    assert_eq!(names(made.path()), names(&kept), "files of the code");
    for name in names(made.path()) {
        let read = |at: &Path| std::fs::read_to_string(at.join(&name)).expect("a text");
        assert_eq!(
            read(made.path()),
            read(&kept),
            "{name:?}: run GESTA_GENERATE=1 cargo test -p gesta-grpc --test generated"
        );
    }
}
