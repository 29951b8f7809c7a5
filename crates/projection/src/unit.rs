//! What a process runs: views and projections, whatever their types.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::BoxFuture;
use gesta_core::Filter;

use crate::config::{Config, OnPoison};
use crate::definition::{ProjectionId, Table, check_name};
use crate::drive::{Context, drive};
use crate::error::Error;
use crate::projection::Projection;
use crate::target::Target;
use crate::view::View;
use crate::view_work::{ViewSettings, ViewWork};
use crate::work::ProjectionWork;

/// A view or a projection, without its type.
pub(crate) trait Unit<T: Target>: Send + Sync {
    /// Returns name and version, the table of a view, and the names that readers use.
    fn definition(&self) -> Result<(ProjectionId, Option<Table>, Vec<String>), Error>;

    fn filter(&self) -> Filter;

    /// Returns what is stored of an index; `None` for code.
    fn stored_definition(&self) -> Option<String> {
        None
    }

    /// Runs until the process stops or the rows are gone.
    fn run(self: Arc<Self>, context: Context<T>) -> BoxFuture<'static, ()>;
}

/// A view, under its own name or another one.
pub(crate) struct ViewUnit<V> {
    pub(crate) view: Arc<V>,
    pub(crate) name: String,
}

impl<T: Target, V: View> Unit<T> for ViewUnit<V> {
    fn definition(&self) -> Result<(ProjectionId, Option<Table>, Vec<String>), Error> {
        let table = Table::named::<V>(&self.name)?;
        let id = ProjectionId {
            name: self.name.clone(),
            version: V::VERSION,
        };
        Ok((id, Some(table), vec![self.name.clone()]))
    }

    fn filter(&self) -> Filter {
        self.view.filter()
    }

    fn run(self: Arc<Self>, context: Context<T>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // The names were checked when the view was registered.
            let Ok(table) = Table::named::<V>(&self.name) else {
                return;
            };
            let table = Arc::new(table);
            let queries = &context.filter.any_of;
            let is_of_streams = queries
                .iter()
                .all(|q| q.types.is_empty() && q.tags.is_empty());
            let settings = ViewSettings {
                store: Arc::clone(&context.store),
                on_poison: context.config.on_poison,
                parked_keys_max: context.config.parked_keys_max,
                row_cache_bytes_max: context.config.row_cache_bytes_max,
                sees_whole_streams: is_of_streams,
            };
            let make = || {
                let (view, target) = (Arc::clone(&self.view), context.target.clone());
                let at_start = context.begins_at_start.load(Ordering::SeqCst);
                let settings = ViewSettings {
                    sees_whole_streams: is_of_streams && at_start,
                    ..settings.clone()
                };
                ViewWork::new(view, target, Arc::clone(&table), settings)
            };
            drive(&context, make).await;
        })
    }
}

pub(crate) struct ProjectionUnit<P>(pub(crate) Arc<P>);

impl<T: Target, P: Projection<T>> Unit<T> for ProjectionUnit<P> {
    fn definition(&self) -> Result<(ProjectionId, Option<Table>, Vec<String>), Error> {
        check_name("the name of a projection", P::NAME)?;
        for table in P::TABLES {
            check_name("the name of a table", table)?;
        }
        let id = ProjectionId {
            name: P::NAME.to_owned(),
            version: P::VERSION,
        };
        let tables = P::TABLES.iter().map(|&table| table.to_owned());
        Ok((id, None, tables.collect()))
    }

    fn filter(&self) -> Filter {
        self.0.filter()
    }

    fn run(self: Arc<Self>, mut context: Context<T>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // There is no key by which it could be parked, and what is parked without a key is never applied again.
            if context.config.on_poison == OnPoison::Park {
                let mut config = Config::clone(&context.config);
                config.on_poison = OnPoison::Stop;
                context.config = Arc::new(config);
            }
            drive(&context, || ProjectionWork(Arc::clone(&self.0))).await;
        })
    }
}
