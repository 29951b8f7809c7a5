//! Shows pages in a browser without a screen and asks it how they look.
//!
//! A window has a least width, so a page stands in a frame of the wanted width; the frames of all pages and widths stand
//! in one host page, which asks each and writes the answers into itself.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// From a phone to a large screen.
pub(crate) const WIDTHS: [u32; 4] = [320, 600, 1_100, 1_600];

const HOST: &str = include_str!("host.html");
const PROBE: &str = include_str!("probe.js");

/// Which colours the reader prefers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scheme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// What the browser says of a page in a frame.
#[derive(Debug, Deserialize)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) width: u32,
    pub(crate) inner_width: u32,
    /// Of the document.
    pub(crate) scroll_width: u32,
    /// Errors of the script, and what the page's policy forbade.
    pub(crate) errors: Vec<String>,
    /// Charts that are shown.
    pub(crate) charts: u32,
    /// Of them without size.
    pub(crate) empty_charts: u32,
    /// Labels of a chart that overlap.
    pub(crate) overlaps: Vec<String>,
    /// Labels outside the page.
    pub(crate) outside: Vec<String>,
    /// Of text on its ground.
    pub(crate) contrast: f64,
    pub(crate) ground: String,
    /// The button turns the ground around.
    pub(crate) theme_changes: bool,
    /// What is shown where the pointer is on a point.
    pub(crate) tip: String,
    pub(crate) title: String,
}

pub(crate) struct Browser(PathBuf);

/// The browser; none, loudly, if there is none and this is not CI.
pub(crate) fn find() -> Option<Browser> {
    if let Some(named) = std::env::var_os("GESTA_CHROMIUM") {
        return Some(Browser(named.into()));
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    let found = names.iter().find_map(|name| {
        std::env::split_paths(&paths)
            .map(|path| path.join(name))
            .find(|path| path.is_file())
    });
    if found.is_none() {
        let sentence = "no chromium (GESTA_CHROMIUM or PATH)";
        assert!(std::env::var_os("CI").is_none(), "{sentence}");
        eprintln!("SKIPPED: {sentence}; pages were not shown");
    }
    found.map(Browser)
}

impl Browser {
    /// Shows every page in every width.
    pub(crate) fn show(&self, pages: &[(&str, String)], scheme: Scheme) -> Vec<Shown> {
        let folder = tempfile::tempdir().unwrap();
        let host = folder.path().join("host.html");
        std::fs::write(&host, host_page(pages)).unwrap();
        let preferred = match scheme {
            Scheme::Light => 1,
            Scheme::Dark => 0,
        };
        let output = Command::new(&self.0)
            // The sandbox does not work for root, nor in most containers; the page is our own.
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--no-first-run",
                "--disable-extensions",
                "--timeout=60000",
                "--window-size=1700,1000",
            ])
            .arg(format!("--blink-settings=preferredColorScheme={preferred}"))
            .arg(format!(
                "--user-data-dir={}",
                folder.path().join("profile").display()
            ))
            .arg("--dump-dom")
            .arg(&host)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        let answers = dom
            .split_once("<pre id=\"answers\">")
            .and_then(|(_, rest)| rest.split_once("</pre>"))
            .map(|(answers, _)| answers.to_owned());
        let Some(answers) = answers.filter(|answers| !answers.is_empty()) else {
            panic!(
                "no answer of the browser: {dom}\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        // The answers are written as hexadecimal digits, which no markup can change.
        let bytes: Vec<u8> = (0..answers.len() / 2)
            .map(|at| u8::from_str_radix(&answers[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        serde_json::from_slice(&bytes).unwrap()
    }
}

fn host_page(pages: &[(&str, String)]) -> String {
    let pages: Vec<serde_json::Value> = pages
        .iter()
        .map(|(name, html)| {
            // Before everything else, so that it sees every error; the page's own policy still holds.
            let html = html.replacen("<head>", &format!("<head><script>{PROBE}</script>"), 1);
            serde_json::json!({"name": name, "html": html})
        })
        .collect();
    let data = serde_json::json!({"pages": pages, "widths": WIDTHS});
    let data = data.to_string().replace('<', "\\u003c");
    HOST.replace("DATA", &data)
}
