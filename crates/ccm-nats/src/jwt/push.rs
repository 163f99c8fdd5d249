//! Update of an account on running servers, through a user of the system account.

use std::time::Duration;

use serde::Deserialize;

use crate::{Cause, Connection, Headers, NatsError, ReplyLimits, Subject};

/// Subject on which servers accept JWTs of accounts.
const UPDATE: &str = "$SYS.REQ.CLAIMS.UPDATE";

/// Longest time between the replies of two servers.
const SILENCE: Duration = Duration::from_millis(500);

/// Time limit for the first reply.
const LIMIT: Duration = Duration::from_secs(5);

/// Reply of a server.
#[derive(Deserialize)]
struct UpdateReply {
    error: Option<UpdateError>,
}

#[derive(Deserialize)]
struct UpdateError {
    #[serde(default)]
    description: String,
}

/// Sends the JWT of an account to all servers, and returns the number of servers that accepted it.
/// Users that it revokes are disconnected.
pub async fn push_account(connection: &Connection, jwt: &str) -> Result<usize, NatsError> {
    let subject: Subject = UPDATE.parse()?;
    let failed = |source| NatsError::Failed {
        action: "account update",
        subject: UPDATE.into(),
        source,
    };
    let limits = ReplyLimits {
        expected: None,
        silence: SILENCE,
        deadline: LIMIT,
    };
    let body = jwt.to_owned().into();
    let mut replies = connection
        .request_many(&subject, Headers::new(), body, limits)
        .await?;
    let mut count = 0;
    while let Some(reply) = replies.next().await {
        let reply: UpdateReply =
            serde_json::from_slice(&reply.body).map_err(|err| failed(err.into()))?;
        if let Some(error) = reply.error {
            return Err(failed(Cause::Reply(error.description)));
        }
        count += 1;
    }
    if let Some(denial) = replies.denial() {
        return Err(denial.clone().into());
    }
    if count == 0 {
        return Err(NatsError::NoReply {
            subject: UPDATE.into(),
            limit: LIMIT,
        });
    }
    Ok(count)
}
