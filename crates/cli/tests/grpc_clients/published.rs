//! The programs that clients come with, as they were published: only the connection string is another.

use crate::fetched::{self, addressed, blocks};
use crate::support::registry::is_deep;
use crate::support::{Server, get, succeed, url_of};

/// A server that they run against.
fn server() -> (tempfile::TempDir, Server) {
    let folder = tempfile::tempdir().unwrap();
    let store = url_of(&folder.path().join("gesta.db"));
    succeed(&["schema", "create", "--store", &store]);
    succeed(&["virtual-streams", "on", "--store", &store]);
    let server = Server::start(&store);
    (folder, server)
}

/// Goal: the programs of the Python client's description, of which the first is its quick start, and which check by
/// themselves what they read; all but those that need more than the client and a server, or projections.
#[test]
fn the_published_programs_for_python_run() {
    let Some(client) = fetched::python() else {
        return;
    };
    let (_folder, server) = server();
    let python = client.check.as_ref().unwrap()[0].clone();
    let program = [python, fetched::programs().join("readme.py").into()];
    let said = client.run(&program, &[server.address().to_owned()]);
    let last = said.lines().last().unwrap_or_default();
    let count = last.split(' ').next().and_then(|count| count.parse().ok());
    assert!(count.is_some_and(|count: usize| count >= 60), "{said}");
    println!("{last}");
    server.stop();
}

/// Goal: the program of the page about moving over copies streams with their ids, revisions and metadata, and stores
/// nothing twice when it is run again.
#[test]
fn streams_are_moved_over() {
    let Some(client) = fetched::python() else {
        return;
    };
    let ((_old_folder, old), (_new_folder, new)) = (server(), server());
    let quickstart = fetched::program_of_page("python.md", "python");
    for _ in 0..3 {
        client.run_text(&quickstart, old.address());
    }
    let program = fetched::program_of_page("moving.md", "python");
    let program = program.replace("127.0.0.1:2114", old.address());
    for _ in 0..2 {
        let said = client.run_text(&program, new.address());
        assert_eq!(said, "6 events in 3 streams\n");
    }
    let events = |server: &Server| -> Vec<serde_json::Value> {
        let page = get(server.address(), "/all?limit=100");
        let page: serde_json::Value = serde_json::from_str(&page).unwrap();
        let mut events = page["events"].as_array().unwrap().clone();
        for event in &mut events {
            let event = event.as_object_mut().unwrap();
            event.retain(|key, _| {
                matches!(key.as_str(), "stream" | "revision" | "id" | "type" | "data")
            });
        }
        events
    };
    assert_eq!(events(&old), events(&new));
    old.stop();
    new.stop();
}

/// Goal: the program of the Rust client's description. It comes over TLS with a password that the server does not ask
/// for, unless its connection string says otherwise.
#[test]
fn the_published_program_for_rust_runs() {
    if !is_deep("the published program of the Rust client") {
        return;
    }
    let Some(client) = fetched::rust() else {
        return;
    };
    let (_folder, server) = server();
    let program = blocks(&fetched::rust_readme(), "rust").remove(0);
    let plain = program.replace("localhost:2113", "localhost:2113?tls=false");
    let said = client.run_text(&plain, server.address());
    assert_eq!(said, "Foo { is_rust_a_nice_language: true }\n");
    server.stop();
}

/// Goal: the quick start among the Go client's published programs, run by a program of one line.
#[test]
fn the_published_program_for_go_runs() {
    if !is_deep("the published program of the Go client") {
        return;
    }
    let Some(client) = fetched::go() else { return };
    let (_folder, server) = server();
    let folder = client.folder.join("published");
    std::fs::create_dir_all(folder.join("samples")).unwrap();
    for sample in std::fs::read_dir(fetched::go_samples(&client)).unwrap() {
        let path = sample.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let named = text.replace("{connectionString}", "kurrentdb://localhost:2113?tls=false");
        let text = match named.contains("localhost:2113") {
            true => addressed(&named, server.address()),
            false => named,
        };
        std::fs::write(folder.join("samples").join(path.file_name().unwrap()), text).unwrap();
    }
    let main = "package main\n\nimport \"quickstart/published/samples\"\n\nfunc main() { samples.Run() }\n";
    std::fs::write(folder.join("main.go"), main).unwrap();
    let said = client.run(&["go".into(), "run".into(), "./published".into()], &[]);
    assert!(!said.is_empty());
    server.stop();
}
