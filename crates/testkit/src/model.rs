//! to come
use crate::factory::StoreFactory;
/// x
pub async fn properties(_f: &dyn StoreFactory) {}
