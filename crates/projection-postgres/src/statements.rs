//! The statements on the tables of Gesta; each says in its file what it takes, locks and gives.

pub(crate) const FIND_SCHEMA_VERSION: &str = include_str!("../sql/find_schema_version.sql");
pub(crate) const READ_SCHEMA_VERSION: &str = include_str!("../sql/read_schema_version.sql");
pub(crate) const CREATE_SCHEMA_VERSION: &str = include_str!("../sql/create_schema_version.sql");
pub(crate) const REPLACE_SCHEMA_VERSION: &str = include_str!("../sql/replace_schema_version.sql");
pub(crate) const LOCK_DEFINITIONS: &str = include_str!("../sql/lock_definitions.sql");

pub(crate) const READ_PROJECTIONS: &str = include_str!("../sql/read_projections.sql");
pub(crate) const LOCK_PROJECTION: &str = include_str!("../sql/lock_projection.sql");
pub(crate) const INSERT_PROJECTION: &str = include_str!("../sql/insert_projection.sql");
pub(crate) const FILL_FILTER: &str = include_str!("../sql/fill_filter.sql");
pub(crate) const CLAIM_PROJECTION: &str = include_str!("../sql/claim_projection.sql");
pub(crate) const UPDATE_STATE: &str = include_str!("../sql/update_state.sql");
pub(crate) const UPDATE_LIFE: &str = include_str!("../sql/update_life.sql");
pub(crate) const RETIRE_PROJECTION: &str = include_str!("../sql/retire_projection.sql");
pub(crate) const READ_RIGHTS: &str = include_str!("../sql/read_rights.sql");
pub(crate) const READ_GRANTS: &str = include_str!("../sql/read_grants.sql");

pub(crate) const MOVE_CHECKPOINT: &str = include_str!("../sql/move_checkpoint.sql");
pub(crate) const ANNOUNCE_ATTEMPT: &str = include_str!("../sql/announce_attempt.sql");
pub(crate) const RESET_PROJECTION: &str = include_str!("../sql/reset_projection.sql");
pub(crate) const END_SESSION: &str = include_str!("../sql/end_session.sql");

pub(crate) const RENEW_LEASE: &str = include_str!("../sql/renew_lease.sql");
pub(crate) const CUT_LEASES: &str = include_str!("../sql/cut_leases.sql");
pub(crate) const END_LEASE: &str = include_str!("../sql/end_lease.sql");

pub(crate) const INSERT_PARKED: &str = include_str!("../sql/insert_parked.sql");
pub(crate) const DELETE_PARKED: &str = include_str!("../sql/delete_parked.sql");
pub(crate) const DELETE_ALL_PARKED: &str = include_str!("../sql/delete_all_parked.sql");
pub(crate) const READ_PARKED: &str = include_str!("../sql/read_parked.sql");
pub(crate) const COUNT_PARKED: &str = include_str!("../sql/count_parked.sql");
pub(crate) const READ_PARKED_KEYS: &str = include_str!("../sql/read_parked_keys.sql");

pub(crate) const INSERT_COMMAND: &str = include_str!("../sql/insert_command.sql");
pub(crate) const READ_COMMANDS: &str = include_str!("../sql/read_commands.sql");
pub(crate) const READ_ANSWER: &str = include_str!("../sql/read_answer.sql");
pub(crate) const ANSWER_COMMAND: &str = include_str!("../sql/answer_command.sql");
