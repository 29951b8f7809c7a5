//! Collects what the server logs while a test runs on one thread.

use std::io::Write;
use std::sync::{Arc, Mutex, Once};

use tracing_subscriber::fmt::MakeWriter;

/// The lines that were logged so far.
#[derive(Clone, Default)]
pub(crate) struct Logged(Arc<Mutex<Vec<u8>>>);

impl Logged {
    /// Collects from now on, until the guard is dropped. Lines of tasks on other threads are not seen.
    pub(crate) fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        // With this subscriber alone, a line that another thread is the first to log would be off for all threads.
        static ELSEWHERE: Once = Once::new();
        ELSEWHERE.call_once(|| {
            let nowhere = tracing_subscriber::fmt().with_writer(std::io::sink);
            tracing::subscriber::set_global_default(nowhere.finish()).expect("the first one");
        });
        let logged = Self::default();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(false)
            .with_writer(logged.clone())
            .finish();
        (logged, tracing::subscriber::set_default(subscriber))
    }

    /// Returns the lines that contain this text.
    pub(crate) fn with(&self, text: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap();
        let found = lines.lines().filter(|line| line.contains(text));
        found.map(str::to_owned).collect()
    }
}

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Logged {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
