//! The option of commands that write down what was asked and answered (`gesta_kit::operations`).

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use gesta_kit::operations::{self, Operation};

use gesta_report::failure::{Context, Result};

/// Where the history of a run goes.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Writes every operation and its answer into this file, a line of JSON each, for judges of any kind.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

impl HistoryArgs {
    /// The file, empty, if one is wanted.
    pub(crate) fn create(&self) -> Result<HistoryFile> {
        let create = |path: &PathBuf| {
            let file = File::create(path).context(format!("the history {}", path.display()))?;
            Ok::<_, gesta_report::failure::Failure>(Arc::new(Mutex::new(BufWriter::new(file))))
        };
        let file = self.history.as_ref().map(create).transpose()?;
        Ok(HistoryFile { file })
    }
}

/// The file of a history; nothing if none is wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct HistoryFile {
    file: Option<Arc<Mutex<BufWriter<File>>>>,
}

impl HistoryFile {
    /// Adds operations whose keys are in no other part of the file.
    pub(crate) fn add(&self, operations: impl FnOnce() -> Vec<Operation>) -> Result<()> {
        match &self.file {
            Some(file) => {
                let mut file = file.lock().expect("no panic while it is written");
                operations::write(&operations(), &mut *file).context("writing the history")
            }
            None => Ok(()),
        }
    }
}
