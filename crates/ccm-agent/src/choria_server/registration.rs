//! Registration data: the inventory of this node, published periodically as Choria's server with
//! `registration = inventory_content` does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use chrono::DateTime;
use serde_json::json;
use tokio::sync::watch;

use super::{ChoriaServer, rpcutil};
use crate::choria_events::random_part;
use crate::node::VERSION;
use ccm_core::engine::Level;
use ccm_core::system::random;
use ccm_nats::choria::message::{MessageError, Request, TransportMessage};
use ccm_nats::subject::choria as subject;
use ccm_nats::{Headers, NatsError};
use ccm_value::text::go_time;

/// Format of the data.
const PROTOCOL: &str = "choria:registration:inventorycontent:1";

/// Agent that receives registrations.
const AGENT: &str = "registration";

/// Time to live of the request, in seconds.
const TTL: u64 = 60;

/// Why the data could not be published.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error(transparent)]
    Message(#[from] MessageError),
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error("the inventory is not available")]
    Inventory,
}

/// Publishes registration data until stopped, if that is configured: once connected, after a random
/// part of the interval, so that nodes which start together do not stay together, and then after
/// each interval.
pub(super) async fn publish(server: Arc<ChoriaServer>, mut stop: watch::Receiver<bool>) {
    let Some(every) = server.registration_interval else {
        return;
    };
    let mut state = server.connection.state();
    // Without a random number the interval is used.
    let mut delay = random().map_or(every, |number| random_part(every, number));
    loop {
        tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => return,
            connected = state.wait_for(|state| state.is_up()) => if connected.is_err() {
                return;
            }
        }
        if let Err(error) = publish_once(&server).await {
            let fields = [("error", error.to_string())];
            let text = "Could not publish registration data for Choria";
            server.node.log(Level::Warn, text, &fields);
        }
        tokio::select! {
            _ = stop.wait_for(|stopped| *stopped) => return,
            () = tokio::time::sleep(delay) => delay = every,
        }
    }
}

async fn publish_once(server: &Arc<ChoriaServer>) -> Result<(), RegistrationError> {
    let collective = server
        .main_collective()
        .ok_or(RegistrationError::Inventory)?;
    let gathering = server.clone();
    let data = tokio::task::spawn_blocking(move || inventory(&gathering)).await;
    let data = data.ok().flatten().ok_or(RegistrationError::Inventory)?;
    let identity = server.node.identity.name.as_str();
    let request = Request::new(
        (AGENT, collective.as_str()),
        (&format!("choria={identity}"), identity),
        server.node.next_id().as_str(),
        TTL,
        server.node.services.clock.now(),
        data,
    );
    let transport = TransportMessage::new(server.key.request(&request)?, identity)
        .replying_to(super::NO_REPLY)
        .encode()?;
    let subject = subject::broadcast(collective, AGENT)?;
    let headers = Headers::new();
    Ok(server
        .connection
        .publish(&subject, headers, transport.into())
        .await?)
}

/// Returns the inventory as JSON.
fn inventory(server: &ChoriaServer) -> Option<Vec<u8>> {
    let node = &server.node;
    let stats = &server.stats;
    let uptime = node.services.clock.now() - node.identity.started;
    let content = json!({
        "agents": rpcutil::agents().ok()?,
        "classes": node.identity.groups,
        "facts": node.services.facts.current().all(),
        "status": {
            "identity": node.identity.name,
            "uptime": uptime.num_seconds(),
            "connected_server": server.connection.servers(),
            "last_message": 0,
            "provisioning_mode": false,
            "stats": {
                "total": stats.total.load(Ordering::Relaxed),
                "valid": stats.valid.load(Ordering::Relaxed),
                "invalid": stats.invalid.load(Ordering::Relaxed),
                "passed": stats.passed.load(Ordering::Relaxed),
                "filtered": stats.filtered.load(Ordering::Relaxed),
                "replies": stats.replies.load(Ordering::Relaxed),
                "ttlexpired": stats.expired.load(Ordering::Relaxed),
                "events": 0,
            },
            "certificate_expires": go_time(&DateTime::UNIX_EPOCH),
            "token_expires": go_time(&server.key.claims().expiry()?),
        },
        "collectives": server.collectives,
        "build_info": {"version": VERSION, "sha": ""},
        "machines": [],
    });
    serde_json::to_vec(&json!({"protocol": PROTOCOL, "content": content})).ok()
}
