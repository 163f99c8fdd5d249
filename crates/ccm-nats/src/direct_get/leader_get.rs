//! One message from the leader of a stream. Replicas, which answer direct get requests, may lag
//! behind it.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use serde_json::Value;

use super::StoredMessage;
use super::stored_message::MsgGetReply;
use crate::kv::bucket_of;
use crate::{Cause, Connection, NatsError};

impl Connection {
    /// Returns the message that a `STREAM.MSG.GET` request selects, such as
    /// `{"last_by_subj": SUBJECT}`.
    pub(crate) async fn get_from_leader(
        &self,
        stream: &str,
        selector: &Value,
    ) -> Result<Option<StoredMessage>, NatsError> {
        let failed = |source| NatsError::Store {
            action: "read",
            name: bucket_of(stream).into(),
            source,
        };
        let request = format!("STREAM.MSG.GET.{stream}");
        let subject = self.api(&request);
        let sending = self.jetstream().request(request, selector);
        let reply: Response<MsgGetReply> = self
            .unless_denied(&subject, sending)
            .await?
            .map_err(|err| failed(Cause::client(err)))?;
        match reply {
            Response::Ok(MsgGetReply { message }) => match message.decode() {
                Some(stored) => Ok(Some(stored)),
                None => Err(failed(Cause::Reply("the reply can't be decoded".into()))),
            },
            Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => {
                Ok(None)
            }
            Response::Err { error } => Err(failed(Cause::client(error))),
        }
    }
}
