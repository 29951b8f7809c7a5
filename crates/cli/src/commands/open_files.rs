//! Raises the limit of open files at the start, and lowers the number of connections to what fits.
//!
//! Why: each connection is an open file, and many systems allow 1,024 unless a process asks for more. A server that
//! runs out of files cannot accept, nor connect to its database again.

/// How many open files are kept for other things than connections of clients: the database, the log, connections of
/// whoever looks after the server.
const OTHERS: usize = 128;

/// Raises the limit of open files as far as the system allows. Returns how many of `connections_max` connections fit,
/// with a warning if that is less.
pub(super) fn fitting(connections_max: usize) -> usize {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let fitting = fitting_into(limit, connections_max);
            if fitting < connections_max {
                tracing::warn!(
                    connections_max = fitting,
                    wanted = connections_max,
                    open_files_max = limit,
                    "fewer connections: the system allows too few open files (see ulimit -Hn)"
                );
            }
            fitting
        }
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be read or raised");
            connections_max
        }
    }
}

fn fitting_into(limit: usize, connections_max: usize) -> usize {
    let others = OTHERS.min(limit / 4);
    connections_max.min((limit - others).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_files_for_others() {
        assert_eq!(fitting_into(1_048_576, 10_000), 10_000);
        assert_eq!(fitting_into(1_024, 10_000), 896);
        assert_eq!(fitting_into(256, 10_000), 192);
        assert_eq!(fitting_into(256, 100), 100);
        assert_eq!(fitting_into(0, 100), 1);
    }
}
