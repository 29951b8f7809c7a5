//! What to use in place of a call that Gesta does not serve on purpose.

/// Beginning of the paths of the calls of operators.
const OPERATIONS: &str = "/event_store.client.operations.Operations/";
/// Beginning of the paths of the calls of projections.
const PROJECTIONS: &str = "/event_store.client.projections.Projections/";

/// Returns what to use in place of a call; `None` if nothing does the same.
pub(crate) fn of(path: &str) -> Option<&'static str> {
    if path.starts_with(PROJECTIONS) {
        return Some(
            "no code of projections is run here: use a subscription, or the virtual streams `$ce-`, `$et-` and `$streams`",
        );
    }
    let advice = match path.strip_prefix(OPERATIONS)? {
        "Shutdown" => "end the process of the server with SIGTERM",
        // Of the nodes of a cluster; a server alone serves both.
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
            (
                "/event_store.client.operations.Operations/ResignNode",
                "`gesta cluster drain`",
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
