//! The list of cases holds every case.

use gesta_kit::all_cases;

/// Goal: a case that is written but not listed would never run.
#[test]
fn every_case_is_listed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cases");
    let mut written = Vec::new();
    for file in std::fs::read_dir(folder).expect("the cases") {
        let path = file.expect("a file").path();
        let theme = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&path).expect("readable");
        for line in text.lines() {
            let name = line
                .strip_prefix("pub async fn ")
                .and_then(|rest| rest.split('(').next());
            written.extend(name.map(|name| format!("{theme}::{name}")));
        }
    }
    let mut listed: Vec<String> = all_cases().iter().map(|case| format!("{case:?}")).collect();
    written.sort();
    listed.sort();
    assert_eq!(listed, written);
}
