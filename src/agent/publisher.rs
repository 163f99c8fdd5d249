//! stub
use super::{log::Log, metrics::Metrics, spool::Spool};
use crate::nats::Connection;
use std::sync::Arc;
pub struct Publisher;
impl Publisher {
    pub fn new(_: Arc<Spool>, _: Connection, _: Metrics, _: Log) -> Self {
        Self
    }
    pub async fn run(self, _: tokio::sync::watch::Receiver<bool>) {}
}
