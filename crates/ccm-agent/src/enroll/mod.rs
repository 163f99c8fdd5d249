//! Enrolment of this node: creates its key, asks to become a member of the fleet, and writes
//! credentials and configuration.
//!
//! The seed never leaves the node. It is stored before the first request, so that an interrupted
//! enrolment continues with the same key. The reply must be signed by the key that the token names.
//! Who decides is in `ccm_fleet::enrolment`.

mod config_file;
mod node_files;

pub use config_file::ConfigFileError;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ccm_core::model::enrolment::{
    ENROLMENT_REQUEST, EnrolmentReply, EnrolmentRequest, EnrolmentState, Membership,
};
use ccm_core::model::node::NodeName;
use ccm_core::system::{Clock, FileError};
use ccm_nats::context::Login;
use ccm_nats::enrolment_token::{TokenContent, TokenError};
use ccm_nats::jwt::{self, JwtError, User};
use ccm_nats::request_signature::{KeyError, PublicKey, SignatureClaim, Signer};
use ccm_nats::subject::ENROLMENT_INBOX;
use ccm_nats::{
    ConnectMode, Connection, ContextError, Headers, NatsError, Reply, Settings, Subject, Subjects,
    backoff,
};
use ccm_value::text::go_duration;

use crate::VERSION;
use config_file::NodeSettings;
use node_files::NodeFiles;

/// Time limit for connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for one reply.
const REPLY_LIMIT: Duration = Duration::from_secs(5);

/// Longest time between two requests.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Connection name that NATS servers display.
const CONNECTION: &str = "ccm enroll";

/// Why an enrolment failed. No message contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Nats(#[from] NatsError),
    #[error("{}: {source}", path.display())]
    Config {
        path: PathBuf,
        source: ConfigFileError,
    },
    #[error("{} belongs to another fleet", .0.display())]
    OtherFleet(PathBuf),
    #[error("{}: {source}", path.display())]
    Key { path: PathBuf, source: KeyError },
    #[error("invalid reply of the fleet: {0}")]
    Reply(&'static str),
    #[error("invalid credentials in the reply of the fleet")]
    Jwt(#[source] JwtError),
    #[error("the enrolment of {node} was rejected: {reason}")]
    Rejected { node: NodeName, reason: String },
    #[error("the enrolment of {node} was refused: {reason}")]
    Refused { node: NodeName, reason: String },
    #[error("not approved within {}", go_duration(*.0))]
    TimedOut(Duration),
    #[error("the new credentials do not work: {0}")]
    Unusable(#[source] NatsError),
}

/// What to enroll, and where files are written.
#[derive(Clone, Debug)]
pub struct EnrollOptions {
    pub token: TokenContent,
    /// Server URLs, instead of those in the token.
    pub servers: Option<String>,
    pub node: NodeName,
    /// The agent configuration; other files are written beside it.
    pub config: PathBuf,
    /// Time to wait for approval; without a limit if not set.
    pub wait: Option<Duration>,
    /// Replace settings and credentials of another fleet.
    pub force: bool,
    /// Create a new key, even if there is one.
    pub new_key: bool,
}

/// Progress of an enrolment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The request waits for an operator.
    Pending { public_key: String },
    /// No approver answers.
    NoApprover,
}

/// A completed enrolment.
#[derive(Clone, Debug)]
pub struct Enrolled {
    pub node: NodeName,
    pub public_key: String,
    /// Files that were written.
    pub files: Vec<PathBuf>,
}

/// Enrolls this node: waits for the decision, then writes credentials and configuration.
pub async fn enroll(
    options: &EnrollOptions,
    clock: &dyn Clock,
    mut notify: impl FnMut(Progress),
) -> Result<Enrolled, EnrollError> {
    let files = NodeFiles::beside(&options.config)?;
    let token_account = account_of(options.token.jwt.reveal())?;
    check_existing(&files, options, &token_account)?;
    let seed = files.load_or_create_seed(options.new_key)?;
    let signer = Signer::from_seed(seed.reveal()).map_err(|source| EnrollError::Key {
        path: files.seed(),
        source,
    })?;
    let public_key = signer.public_key();
    let temporary = files.temporary_ca(&options.token.ca)?;
    let mut settings = server_settings(options)?;
    settings.tls.ca = temporary.as_ref().map(|(_, path)| path.clone());
    settings.login = Login::Jwt {
        jwt: options.token.jwt.clone(),
        seed: None,
    };
    settings.inbox_prefix = Some(format!("{ENROLMENT_INBOX}.{}", options.token.id()?));
    let once = ConnectMode::Once(CONNECT_LIMIT);
    let connection = ccm_nats::connect(&settings, once, CONNECTION).await?;
    let connection = connection.with_signer(Some(signer));
    let exchange = Exchange {
        options,
        connection: &connection,
        public_key: &public_key,
    };
    let membership = exchange.request_membership(clock, &mut notify).await?;
    connection.drain().await;
    // Credentials that do not work are not installed.
    settings.login = Login::Jwt {
        jwt: ccm_value::secret::Secret::new(membership.jwt.clone()),
        seed: Some(seed.clone()),
    };
    settings.inbox_prefix = Some(membership.inbox_prefix.clone());
    check_credentials(&settings).await?;
    let servers = settings.server_list();
    let node = NodeSettings {
        identity: &options.node,
        collective: &membership.collective,
        subject_prefix: &membership.subject_prefix,
        groups: &membership.groups,
        nats_context: &files.context(),
        trust: &membership.trust,
    };
    let text = config_file::merge(&files.existing_config()?, &node, options.force);
    let text = text.map_err(|source| config_error(&options.config, source))?;
    let written = files.write(&seed, &membership, &options.token.ca, &servers, &text)?;
    Ok(Enrolled {
        node: options.node.clone(),
        public_key,
        files: written,
    })
}

/// Refuses to replace the configuration or the credentials of another fleet, before anything is
/// requested.
fn check_existing(
    files: &NodeFiles,
    options: &EnrollOptions,
    account: &str,
) -> Result<(), EnrollError> {
    if options.force {
        return Ok(());
    }
    if let Some(jwt) = files.existing_jwt()?
        && account_of(&jwt).ok().as_deref() != Some(account)
    {
        return Err(EnrollError::OtherFleet(files.creds()));
    }
    let replaced = config_file::replaced(&files.existing_config()?)
        .map_err(|source| config_error(&options.config, source))?;
    if replaced.is_empty() {
        return Ok(());
    }
    let source = ConfigFileError::Conflict(replaced);
    Err(config_error(&options.config, source))
}

fn config_error(path: &Path, source: ConfigFileError) -> EnrollError {
    EnrollError::Config {
        path: path.to_owned(),
        source,
    }
}

/// Returns the account of a user JWT.
fn account_of(text: &str) -> Result<String, EnrollError> {
    let verified = jwt::verify::<User>(text).map_err(EnrollError::Jwt)?;
    Ok(verified.claims.body.issuer_account)
}

fn server_settings(options: &EnrollOptions) -> Result<Settings, EnrollError> {
    let servers = match &options.servers {
        Some(servers) => servers.clone(),
        None => options.token.fleet.servers.join(","),
    };
    Ok(Settings::plain(&servers)?)
}

/// Connects with the new credentials.
async fn check_credentials(settings: &Settings) -> Result<(), EnrollError> {
    let once = ConnectMode::Once(CONNECT_LIMIT);
    let connected = ccm_nats::connect(settings, once, CONNECTION).await;
    let connection = connected.map_err(EnrollError::Unusable)?;
    let flushed = connection.flush().await;
    connection.drain().await;
    flushed.map_err(EnrollError::Unusable)
}

/// Reports whether a server refused the credentials: a violation, expiry or revocation.
pub fn is_login_error(reason: &str) -> bool {
    let reason = reason.to_lowercase();
    reason.contains("authorization") || reason.contains("authentication")
}

/// The exchange with the approver.
struct Exchange<'a> {
    options: &'a EnrollOptions,
    connection: &'a Connection,
    public_key: &'a str,
}

impl Exchange<'_> {
    /// Repeats the request until it is decided.
    async fn request_membership(
        &self,
        clock: &dyn Clock,
        notify: &mut impl FnMut(Progress),
    ) -> Result<Membership, EnrollError> {
        let fleet = &self.options.token.fleet;
        let subjects = Subjects::new(&fleet.prefix, fleet.collective.clone())?;
        let subject = subjects.enrolment(&self.options.token.id()?);
        let start = clock.monotonic();
        let mut last = None;
        for attempt in 0_usize.. {
            let progress = match self.request(&subject).await {
                Ok(reply) => match self.outcome(reply)? {
                    Some(membership) => return Ok(membership),
                    None => Progress::Pending {
                        public_key: self.public_key.to_owned(),
                    },
                },
                Err(EnrollError::Nats(
                    NatsError::NoResponders(_) | NatsError::NoReply { .. } | NatsError::Closed,
                )) => {
                    self.check_login()?;
                    Progress::NoApprover
                }
                Err(err) => return Err(err),
            };
            if last.as_ref() != Some(&progress) {
                notify(progress.clone());
                last = Some(progress);
            }
            let waited = clock.monotonic().saturating_sub(start);
            if let Some(limit) = self.options.wait.filter(|limit| waited >= *limit) {
                return Err(EnrollError::TimedOut(limit));
            }
            tokio::time::sleep(backoff::delay(attempt).min(MAX_DELAY)).await;
        }
        Err(EnrollError::Nats(NatsError::Closed))
    }

    /// Fails if the server has closed the connection because the token expired or was revoked.
    fn check_login(&self) -> Result<(), EnrollError> {
        let reason = self.connection.last_error().borrow().clone();
        if self.connection.is_up() || !is_login_error(&reason) {
            return Ok(());
        }
        Err(EnrollError::Nats(NatsError::Connect {
            servers: self.connection.servers().into(),
            reason: reason.to_lowercase(),
            source: None,
        }))
    }

    async fn request(&self, subject: &Subject) -> Result<EnrolmentReply, EnrollError> {
        let request = EnrolmentRequest {
            protocol: ENROLMENT_REQUEST.into(),
            node: self.options.node.clone(),
            version: VERSION.into(),
        };
        let body = serde_json::to_vec(&request)
            .map_err(|_| EnrollError::Reply("the request can't be encoded"))?;
        let reply = self
            .connection
            .request(subject, Headers::new(), body.into(), REPLY_LIMIT)
            .await?;
        self.verify(&reply)
    }

    /// Verifies that the issuer of the token has signed a reply to this node.
    fn verify(&self, reply: &Reply) -> Result<EnrolmentReply, EnrollError> {
        let issuer = &self.options.token.issuer;
        let claim = SignatureClaim::read(&reply.headers)
            .map_err(|_| EnrollError::Reply("it is not signed"))?;
        if claim.signer != issuer {
            return Err(EnrollError::Reply(
                "it is signed by another key than the token names; get a new token",
            ));
        }
        let key = PublicKey::parse(issuer).map_err(|_| EnrollError::Token(TokenError::Damaged))?;
        claim
            .verify(&key, &reply.subject, &reply.body)
            .map_err(|_| EnrollError::Reply("its signature is invalid"))?;
        let body: EnrolmentReply = serde_json::from_slice(&reply.body)
            .map_err(|_| EnrollError::Reply("it is not an enrolment reply"))?;
        if body.node != self.options.node || body.public_key != self.public_key {
            return Err(EnrollError::Reply("it is for another node"));
        }
        Ok(body)
    }

    /// Returns the membership of an approved node, and nothing while the request is pending.
    fn outcome(&self, reply: EnrolmentReply) -> Result<Option<Membership>, EnrollError> {
        let (node, reason) = (reply.node, reply.reason);
        match reply.state {
            EnrolmentState::Pending => Ok(None),
            EnrolmentState::Rejected => Err(EnrollError::Rejected { node, reason }),
            EnrolmentState::Refused => Err(EnrollError::Refused { node, reason }),
            EnrolmentState::Approved => {
                let missing = EnrollError::Reply("it has no credentials");
                let membership = reply.membership.ok_or(missing)?;
                let verified = jwt::verify::<User>(&membership.jwt).map_err(EnrollError::Jwt)?;
                if verified.claims.subject != self.public_key {
                    return Err(EnrollError::Reply("its credentials are for another key"));
                }
                Ok(Some(membership))
            }
        }
    }
}
