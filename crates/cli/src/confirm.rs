//! Asks for consent to what cannot be undone. Without a terminal, `--yes` is needed.

use std::io::{self, BufRead, IsTerminal, Write};

use gesta_core::printable;

use crate::args::Confirm;
use crate::exit::{Failure, Outcome};

/// Returns without error if the user agrees to `what`, a sentence without its full stop.
pub(crate) fn ask(confirm: &Confirm, what: &str) -> Outcome {
    if confirm.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Failure::usage(format!(
            "{what}: not done without --yes, for there is no terminal at which to ask"
        )));
    }
    write!(io::stderr(), "{}. Go on? [y/N] ", printable(what))?;
    io::stderr().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if agrees(&answer) {
        Ok(())
    } else {
        Err(Failure::Declined)
    }
}

fn agrees(answer: &str) -> bool {
    matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_yes_counts() {
        assert!(agrees("y\n") && agrees("YES\n"));
        assert!(!agrees("\n") && !agrees("n\n") && !agrees("yep\n"));
    }
}
