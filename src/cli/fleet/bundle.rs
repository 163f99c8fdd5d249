//! `ccm fleet bundle`: stores manifests with their files, addressed by content digest.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use super::FleetArgs;
use super::candidates;
use crate::cli::environment::{FactArgs, environment};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::node::Token;
use ccm_core::run::ManifestLocation;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle::pack;
use ccm_fleet::bundle_store::{BundleSelector, BundleStore, BundleUsers, StoredBundle, short_name};
use ccm_value::json;
use ccm_value::text::{count_of, go_time};

/// Number of users of a bundle that an error lists.
const MAX_LISTED_USERS: usize = 5;

/// Manage bundles: manifests with their files, for rollouts
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Output JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Push(PushArgs),
    #[command(alias = "ls")]
    /// List bundles, newest version of each name first
    List,
    Show(ShowArgs),
    Rm(RmArgs),
}

/// Validate, pack and upload a manifest
///
/// Identical content is stored once. With --sign-with a signature is stored as well, for agents that
/// verify it.
#[derive(Debug, clap::Args)]
struct PushArgs {
    /// Directory with a manifest.yaml, or a manifest without further files
    #[arg(value_name = "DIR|MANIFEST")]
    manifest: PathBuf,

    /// Bundle name
    #[arg(long)]
    name: Token,

    /// Also store the bundle at this location, replacing what is there, for agents configured with it
    #[arg(long, value_name = "obj://BUCKET/KEY")]
    source: Option<ManifestLocation>,

    /// Facts to validate the manifest with
    #[command(flatten)]
    facts: FactArgs,
}

/// Show a bundle, its files and the nodes that use it
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Bundle: NAME for the newest version, or NAME@DIGEST
    #[arg(value_name = "BUNDLE", add = candidates::bundles())]
    bundle: BundleSelector,
}

/// Remove a bundle that is not in use
#[derive(Debug, clap::Args)]
struct RmArgs {
    /// NAME@DIGEST
    #[arg(value_name = "BUNDLE", add = candidates::bundles())]
    bundle: BundleSelector,

    /// Remove the bundle even if it is in use
    #[arg(long)]
    force: bool,
}

pub(super) fn run(
    args: &Args,
    fleet: &FleetArgs,
    console: &mut Console,
) -> Result<Verdict, CliError> {
    let (document, text) = match &args.command {
        Command::Push(push) => self::push(push, fleet, console)?,
        Command::List => runtime::block_on(list(fleet))?,
        Command::Show(show) => runtime::block_on(self::show(&show.bundle, fleet))?,
        Command::Rm(rm) => runtime::block_on(remove(rm, fleet))?,
    };
    let text = if args.json {
        format!("{}\n", json::pretty(&document).map_err(CliError::failed)?)
    } else {
        text
    };
    console.print(&text);
    Ok(Verdict::default())
}

/// Output of a command as a JSON document and as text.
type Output = (Value, String);

async fn open(fleet: &FleetArgs) -> Result<BundleStore, CliError> {
    let connection = fleet.connect().await?;
    BundleStore::open(&connection).await.map_err(CliError::from)
}

fn push(args: &PushArgs, fleet: &FleetArgs, console: &Console) -> Result<Output, CliError> {
    let object = match &args.source {
        None => None,
        Some(ManifestLocation::Object { bucket, key }) => Some((bucket, key)),
        Some(other) => {
            let text =
                format!("{other} is not an object store location: expected obj://BUCKET/KEY");
            return Err(CliError::usage(text));
        }
    };
    let signer = fleet.signing.signer(&fleet.nats)?;
    let env = environment(Path::new("."), false, &args.facts, &fleet.nats)?;
    let packed = pack(&args.manifest, &env).map_err(CliError::usage)?;
    for warning in &packed.warnings {
        console.log(&Line::new(Level::Warn, warning));
    }
    let mut signed_for = Vec::new();
    let (bundle, is_new) = runtime::block_on(async {
        let bundles = open(fleet).await?;
        let now = SystemClock.now();
        if let Some(signer) = &signer {
            let source = bundles.sign(&args.name, &packed, signer, now).await;
            signed_for.push(source.map_err(CliError::from)?);
        }
        let pushed = bundles
            .push(&args.name, &packed)
            .await
            .map_err(CliError::from)?;
        if let Some((bucket, key)) = object {
            let placed = bundles.store_as(bucket, key, &packed, signer.as_ref(), now);
            // `ccm fleet init` does not create this bucket, so there is no hint about it.
            placed.await.map_err(CliError::failed)?;
        }
        Ok::<_, CliError>(pushed)
    })?;
    if signer.is_some() {
        signed_for.extend(args.source.as_ref().map(ManifestLocation::to_string));
    }
    let document = json!({
        "name": bundle.name,
        "digest": bundle.digest,
        "size": packed.bytes.len(),
        "files": packed.files,
        "new": is_new,
        "source": args.source.as_ref().map(ManifestLocation::to_string),
        "signed_for": signed_for,
    });
    let verb = if is_new { "stored" } else { "already stored" };
    let mut text = format!(
        "{} {verb} ({}, {} bytes)\n",
        short_name(&bundle),
        count_of(packed.files.len(), "file"),
        packed.bytes.len()
    );
    if let Some(source) = &args.source {
        text.push_str(&format!("stored as {source}\n"));
    }
    for source in signed_for {
        text.push_str(&format!("signed for {source}\n"));
    }
    Ok((document, text))
}

async fn list(fleet: &FleetArgs) -> Result<Output, CliError> {
    let versions = open(fleet).await?.list().await.map_err(CliError::from)?;
    let documents: Vec<Value> = versions.iter().map(document).collect();
    let mut text = String::new();
    for version in &versions {
        let stored = version.stored.as_ref().map(go_time).unwrap_or_default();
        let name = short_name(&version.bundle);
        text.push_str(&format!("{name:<40} {:>10} {stored}\n", version.size));
    }
    Ok((documents.into(), text))
}

fn document(version: &StoredBundle) -> Value {
    json!({
        "name": version.bundle.name,
        "digest": version.bundle.digest,
        "size": version.size,
        "stored": version.stored.as_ref().map(go_time),
    })
}

async fn show(wanted: &BundleSelector, fleet: &FleetArgs) -> Result<Output, CliError> {
    let bundles = open(fleet).await?;
    let version = bundles.find(wanted).await.map_err(CliError::from)?;
    let contents = bundles
        .contents(&version.bundle)
        .await
        .map_err(CliError::from)?;
    let users = bundles
        .users(&version.bundle)
        .await
        .map_err(CliError::from)?;
    let files: Vec<Value> = contents
        .iter()
        .map(|content| json!({"name": content.name, "size": content.size}))
        .collect();
    let mut result = document(&version);
    if let Some(fields) = result.as_object_mut() {
        fields.insert("files".into(), files.into());
        fields.insert("nodes".into(), json!(users.nodes));
        fields.insert("rollouts".into(), json!(users.rollouts));
    }
    let stored = version.stored.as_ref().map(go_time).unwrap_or_default();
    let mut text = format!(
        "name:     {}\ndigest:   {}\nsize:     {} bytes\nstored:   {stored}\nnodes:    {}\nfiles:\n",
        version.bundle.name,
        version.bundle.digest,
        version.size,
        users.nodes.len()
    );
    for content in contents {
        text.push_str(&format!("  {:>10} {}\n", content.size, content.name));
    }
    Ok((result, text))
}

async fn remove(args: &RmArgs, fleet: &FleetArgs) -> Result<Output, CliError> {
    if args.bundle.digest.is_none() {
        let text = format!("no digest given: use {0}@DIGEST", args.bundle.name);
        return Err(CliError::usage(text));
    }
    let bundles = open(fleet).await?;
    let version = bundles.find(&args.bundle).await.map_err(CliError::from)?;
    let users = bundles
        .users(&version.bundle)
        .await
        .map_err(CliError::from)?;
    let name = short_name(&version.bundle);
    if !users.is_empty() && !args.force {
        let text = format!("bundle {name} is used by {}", list_users(&users));
        return Err(CliError::failed(text).hint("use --force to remove it anyway"));
    }
    bundles
        .remove(&version.bundle)
        .await
        .map_err(CliError::from)?;
    Ok((document(&version), format!("{name} removed\n")))
}

/// Lists the first users of a bundle.
fn list_users(users: &BundleUsers) -> String {
    let nodes = users.nodes.iter().map(|key| format!("node {key}"));
    let rollouts = users.rollouts.iter().map(|id| format!("rollout {id}"));
    let mut all = nodes.chain(rollouts);
    let mut names: Vec<String> = all.by_ref().take(MAX_LISTED_USERS).collect();
    match all.count() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    names.join(", ")
}
