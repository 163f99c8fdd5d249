//! `ccm fleet bundle`: stores manifests with their files, addressed by content digest.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::{Value, json};

use super::FleetArgs;
use super::candidates;
use super::request::load_inventory;
use crate::cli::environment::FactArgs;
use crate::cli::output::{Console, paint_diff};
use crate::cli::table::Table;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::facts::built_in_sections;
use ccm_core::model::node::{NodeName, Token};
use ccm_core::run::ManifestLocation;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle::{Packed, pack};
use ccm_fleet::bundle_store::{BundleSelector, BundleStore, BundleUsers, StoredBundle, short_name};
use ccm_template::env::Facts;
use ccm_value::Value as FactValue;
use ccm_value::json;
use ccm_value::text::{count_of, go_time, to_the_second};
use ccm_value::value::Map;

/// Number of users of a bundle that an error lists.
const MAX_LISTED_USERS: usize = 5;

/// Number of unchecked parts of a manifest that are listed.
const MAX_LISTED_UNCHECKED: usize = 10;

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
    Diff(DiffArgs),
    Rm(RmArgs),
}

/// Validate, pack and upload a manifest
///
/// Identical content is stored once. With --sign-with a signature is stored as well, for agents that
/// verify it. What depends on facts is checked with those of --as-node, --facts and --fact only; the
/// rest is listed as not checked.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("facts", |arg| arg.help("JSON or YAML file with facts to check the manifest with")),
    mut_arg("fact", |arg| arg.help("Fact to check the manifest with; overrides --facts and --as-node; repeatable"))
)]
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

    #[command(flatten)]
    facts: FactArgs,

    /// Check the manifest with the facts that this node published or stored
    #[arg(long, value_name = "NODE", add = candidates::nodes())]
    as_node: Option<NodeName>,
}

/// Show a bundle, its files and the nodes that use it
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// Bundle: NAME for the newest version, or NAME@DIGEST
    #[arg(value_name = "BUNDLE", add = candidates::bundles())]
    bundle: BundleSelector,
}

/// Show the differences between two bundles
#[derive(Debug, clap::Args)]
struct DiffArgs {
    /// Old bundle: NAME for the newest version, or NAME@DIGEST
    #[arg(value_name = "OLD", add = candidates::bundles())]
    old: BundleSelector,

    /// New bundle
    #[arg(value_name = "NEW", add = candidates::bundles())]
    new: BundleSelector,
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
        Command::List => runtime::block_on(list(fleet, console))?,
        Command::Diff(args) => runtime::block_on(diff(args, fleet, console))?,
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
    let facts = facts(args, fleet, console)?;
    let packed = pack(&args.manifest, &facts)?;
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
        "unchecked": packed.unchecked,
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
    text.push_str(&unchecked_text(&packed));
    Ok((document, text))
}

/// Returns the facts to check a manifest with: those of a node, and given ones over them. Sections
/// that are not among them are unknown, because every node has them.
fn facts(args: &PushArgs, fleet: &FleetArgs, console: &Console) -> Result<Facts, CliError> {
    let given = args.facts.given()?;
    let known = match &args.as_node {
        Some(node) => node_facts(node, fleet, console)?.merge_deep(&given),
        None if given.as_map().is_none_or(Map::is_empty) => return Ok(Facts::Unknown),
        None => given,
    };
    let sections = built_in_sections().into_iter();
    let unknown = sections.filter(|section| known.get(section).is_none());
    Ok(Facts::Partial {
        unknown: unknown.collect(),
        known,
    })
}

/// Returns the facts that a node published or stored.
fn node_facts(
    node: &NodeName,
    fleet: &FleetArgs,
    console: &Console,
) -> Result<FactValue, CliError> {
    let inventory = load_inventory(fleet, console)?;
    let facts = inventory.facts(node).map(|(facts, _)| facts.clone());
    facts.ok_or_else(|| {
        CliError::usage(format!("no facts of node {node} are stored"))
            .hint("list nodes with `ccm fleet query`, or use --facts FILE")
    })
}

/// Lists the first parts of a manifest that could not be checked.
fn unchecked_text(packed: &Packed) -> String {
    let unchecked = &packed.unchecked;
    if unchecked.is_empty() {
        return String::new();
    }
    let mut text = String::from("not checked, because values of nodes are needed:\n");
    for line in unchecked.iter().take(MAX_LISTED_UNCHECKED) {
        text.push_str(&format!("  {line}\n"));
    }
    match unchecked.len().saturating_sub(MAX_LISTED_UNCHECKED) {
        0 => {}
        more => text.push_str(&format!("  and {more} more\n")),
    }
    if packed.needs_facts {
        text.push_str("use --as-node NODE or --facts FILE to check what depends on facts\n");
    }
    text
}

async fn list(fleet: &FleetArgs, console: &Console) -> Result<Output, CliError> {
    let versions = open(fleet).await?.list().await.map_err(CliError::from)?;
    let documents: Vec<Value> = versions.iter().map(document).collect();
    let mut table = Table::new(["BUNDLE", "BYTES", "STORED"]);
    for version in &versions {
        let stored = version.stored.as_ref().map(to_the_second);
        table.row([
            short_name(&version.bundle).into(),
            version.size.to_string().into(),
            stored.unwrap_or_default().into(),
        ]);
    }
    Ok((documents.into(), table.render(console.has_colour())))
}

async fn diff(args: &DiffArgs, fleet: &FleetArgs, console: &Console) -> Result<Output, CliError> {
    let bundles = open(fleet).await?;
    let old = bundles
        .find(&args.old)
        .await
        .map_err(CliError::from)?
        .bundle;
    let new = bundles
        .find(&args.new)
        .await
        .map_err(CliError::from)?
        .bundle;
    let diff = bundles.diff(&old, &new).await.map_err(CliError::from)?;
    let document = json!({
        "old": old,
        "new": new,
        "files": diff.files,
        "omitted": diff.omitted,
    });
    let changes: String = diff.files.iter().map(|file| file.diff.as_str()).collect();
    // Content of bundles may contain control characters, which a terminal would interpret.
    let changes = changes.replace(|c: char| c.is_control() && c != '\n' && c != '\t', " ");
    let mut text = paint_diff(&changes, console.has_colour());
    if diff.files.is_empty() {
        text = format!("{} and {} are equal\n", short_name(&old), short_name(&new));
    }
    if diff.omitted > 0 {
        let count = count_of(diff.omitted, "more file");
        text.push_str(&format!("{count} not shown: the diff is too long\n"));
    }
    Ok((document, text))
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
        fields.insert("unreadable".into(), json!(users.unreadable));
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
    if !users.unreadable.is_empty() {
        let count = count_of(users.unreadable.len(), "assignment");
        text.push_str(&format!(
            "{count} could not be read and may name the bundle\n"
        ));
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
        let is_certain = !users.nodes.is_empty() || !users.rollouts.is_empty();
        let verb = if is_certain { "is" } else { "may be" };
        let text = format!("bundle {name} {verb} used by {}", list_users(&users));
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
    let unreadable = users.unreadable.iter();
    let unreadable = unreadable.map(|key| format!("node {key} (unreadable assignment)"));
    let mut all = nodes.chain(rollouts).chain(unreadable);
    let mut names: Vec<String> = all.by_ref().take(MAX_LISTED_USERS).collect();
    match all.count() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    names.join(", ")
}
