//! What to use in place of a call that Gesta does not serve on purpose.

/// The one call of users that is not served.
const DELETE_USER: &str = "/event_store.client.users.Users/Delete";
/// What the calls of operators begin with.
const OPERATIONS: &str = "/event_store.client.operations.Operations/";
/// What the calls of projections begin with.
const PROJECTIONS: &str = "/event_store.client.projections.Projections/";

/// What does the same, or why there is no such thing; `None` for a path that no service of the protocol has.
pub(crate) fn of(path: &str) -> Option<&'static str> {
    if path == DELETE_USER {
        return Some("use `Disable`: what a user has done stays in the log, and so does the user");
    }
    if path.starts_with(PROJECTIONS) {
        return Some("use subscriptions, or the virtual streams `$ce-`, `$et-` and `$streams`");
    }
    let advice = match path.strip_prefix(OPERATIONS)? {
        "StartScavenge" => "use the command `gesta scavenge`",
        "StopScavenge" => "interrupt the command `gesta scavenge`",
        "Shutdown" => "end the process of the server with SIGTERM",
        "MergeIndexes" => "the indexes of the database need no merging",
        "ResignNode" => "use the command `gesta cluster drain`",
        "SetNodePriority" => "use the command `gesta cluster pin`",
        _ => return None,
    };
    Some(advice)
}

#[cfg(test)]
mod tests {
    use crate::Refusal;

    #[test]
    fn a_refusal_says_what_to_use() {
        for (path, advice) in [
            ("/event_store.client.users.Users/Delete", "`Disable`"),
            (
                "/event_store.client.operations.Operations/StartScavenge",
                "`gesta scavenge`",
            ),
            (
                "/event_store.client.operations.Operations/Shutdown",
                "SIGTERM",
            ),
            (
                "/event_store.client.projections.Projections/Create",
                "`$ce-`",
            ),
        ] {
            let message = Refusal::unimplemented(path).message;
            assert!(message.contains(path), "{message}");
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn of_unknown_calls_only_the_name_is_said() {
        for path in ["/none", "/event_store.client.operations.Operations/None"] {
            let message = Refusal::unimplemented(path).message;
            assert_eq!(message, format!("{path:?} is not served"));
        }
    }
}
