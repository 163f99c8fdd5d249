//! `ccm fleet bundle`: manifests and their files, stored by their content.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use super::Place;
use crate::cli::environment::{FactArgs, environment};
use crate::cli::output::Console;
use crate::cli::{CliError, Verdict, runtime};
use ccm_core::engine::{Level, Line};
use ccm_core::model::node::Token;
use ccm_core::run::ManifestLocation;
use ccm_core::system::{Clock as _, SystemClock};
use ccm_fleet::bundle::pack;
use ccm_fleet::bundle_store::{Bundles, Users, Version, Wanted, shown};
use ccm_value::json;
use ccm_value::text::{count_of, go_time};

/// How many users of a bundle are named.
const NAMED: usize = 5;

/// Stores manifests with their files, for rollouts
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(subcommand)]
    command: Command,

    /// Prints JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    Push(PushArgs),
    #[command(alias = "ls")]
    /// Lists bundles, the newest of each name first
    List,
    Show(ShowArgs),
    Rm(RmArgs),
}

/// Checks, packs and stores a manifest; the same content is stored once. With --sign-with its
/// signature is stored, too, for agents whose own file names it
#[derive(Debug, clap::Args)]
struct PushArgs {
    /// A directory with a manifest.yaml, or a manifest that needs no other file
    #[arg(value_name = "DIR|MANIFEST")]
    manifest: PathBuf,

    /// What the bundle is called
    #[arg(long)]
    name: Token,

    /// Stores it there as well, in place of what is there, for agents whose own file names that
    #[arg(long, value_name = "obj://BUCKET/KEY")]
    source: Option<ManifestLocation>,

    /// The facts it is checked with: those of a node it is for
    #[command(flatten)]
    facts: FactArgs,
}

/// Shows a bundle, its files and who uses it
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// NAME for the newest, or NAME@DIGEST
    #[arg(value_name = "BUNDLE")]
    bundle: Wanted,
}

/// Removes a bundle that nobody uses
#[derive(Debug, clap::Args)]
struct RmArgs {
    /// NAME@DIGEST
    #[arg(value_name = "BUNDLE")]
    bundle: Wanted,

    /// Removes it even if nodes are assigned it
    #[arg(long)]
    force: bool,
}

pub(super) fn run(args: &Args, place: &Place, console: &mut Console) -> Result<Verdict, CliError> {
    let (document, text) = match &args.command {
        Command::Push(push) => self::push(push, place, console)?,
        Command::List => runtime::block_on(list(place))?,
        Command::Show(show) => runtime::block_on(self::show(&show.bundle, place))?,
        Command::Rm(rm) => runtime::block_on(remove(rm, place))?,
    };
    let text = if args.json {
        format!("{}\n", json::pretty(&document).map_err(CliError::failed)?)
    } else {
        text
    };
    console.print(&text);
    Ok(Verdict::default())
}

/// What a command says: to machines and to people.
type Said = (Value, String);

async fn open(place: &Place) -> Result<Bundles, CliError> {
    let connection = place.connect().await?;
    Bundles::open(&connection).await.map_err(CliError::from)
}

fn push(args: &PushArgs, place: &Place, console: &Console) -> Result<Said, CliError> {
    let object = match &args.source {
        None => None,
        Some(ManifestLocation::Object { bucket, key }) => Some((bucket, key)),
        Some(other) => {
            let text = format!("{other} is no object store: expected obj://BUCKET/KEY");
            return Err(CliError::usage(text));
        }
    };
    let signer = place.signing.signer(&place.nats)?;
    let env = environment(Path::new("."), false, &args.facts, &place.nats)?;
    let packed = pack(&args.manifest, &env).map_err(CliError::usage)?;
    for warning in &packed.warnings {
        console.log(&Line::new(Level::Warn, warning));
    }
    let mut signed_for = Vec::new();
    let (bundle, is_new) = runtime::block_on(async {
        let bundles = open(place).await?;
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
            let placed = bundles.place(bucket, key, &packed, signer.as_ref(), now);
            // A bucket of somebody's own is not made by us.
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
    let verb = if is_new {
        "stored"
    } else {
        "unchanged, stored before"
    };
    let mut text = format!(
        "{} {verb} ({}, {} bytes)\n",
        shown(&bundle),
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

async fn list(place: &Place) -> Result<Said, CliError> {
    let versions = open(place).await?.list().await.map_err(CliError::from)?;
    let documents: Vec<Value> = versions.iter().map(document).collect();
    let mut text = String::new();
    for version in &versions {
        let stored = version.stored.as_ref().map(go_time).unwrap_or_default();
        let name = shown(&version.bundle);
        text.push_str(&format!("{name:<40} {:>10} {stored}\n", version.size));
    }
    Ok((documents.into(), text))
}

fn document(version: &Version) -> Value {
    json!({
        "name": version.bundle.name,
        "digest": version.bundle.digest,
        "size": version.size,
        "stored": version.stored.as_ref().map(go_time),
    })
}

async fn show(wanted: &Wanted, place: &Place) -> Result<Said, CliError> {
    let bundles = open(place).await?;
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
    let mut whole = document(&version);
    if let Some(fields) = whole.as_object_mut() {
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
    Ok((whole, text))
}

async fn remove(args: &RmArgs, place: &Place) -> Result<Said, CliError> {
    if args.bundle.digest.is_none() {
        let text = format!("which {0}? say {0}@DIGEST", args.bundle.name);
        return Err(CliError::usage(text));
    }
    let bundles = open(place).await?;
    let version = bundles.find(&args.bundle).await.map_err(CliError::from)?;
    let users = bundles
        .users(&version.bundle)
        .await
        .map_err(CliError::from)?;
    let name = shown(&version.bundle);
    if !users.is_empty() && !args.force {
        let text = format!(
            "bundle {name} is used by {}; --force removes it",
            named(&users)
        );
        return Err(CliError::failed(text));
    }
    bundles
        .remove(&version.bundle)
        .await
        .map_err(CliError::from)?;
    Ok((document(&version), format!("{name} removed\n")))
}

/// Names the first users of a bundle.
fn named(users: &Users) -> String {
    let nodes = users.nodes.iter().map(|key| format!("node {key}"));
    let rollouts = users.rollouts.iter().map(|id| format!("rollout {id}"));
    let mut all = nodes.chain(rollouts);
    let mut names: Vec<String> = all.by_ref().take(NAMED).collect();
    match all.count() {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    names.join(", ")
}
