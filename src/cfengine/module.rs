//! The commands of the Package Module API, version 1: one request in, one answer out.
//!
//! The agent takes every line it does not expect for a failure, and drops all of them when the
//! program fails. So an answer holds the protocol and nothing else, and what went wrong is an
//! `ErrorMessage` in it, behind the package it is about. What package managers print never gets
//! here.

use std::fmt::Write as _;

use super::request::{Record, Request};
use ccm_core::resource::package::{Batch, BatchError, Instance, PackageError};
use ccm_core::resource::{Host, ProviderError};

/// How much the agent may ask at once; it writes no more than a pipe holds, 64 KiB.
pub const MAX_REQUEST_BYTES: usize = 1024 * 1024;

/// What the agent can ask for, by the names of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Command {
    /// Prints the version of the API
    SupportsApiVersion,
    /// Tells package files from names
    GetPackageData,
    /// Lists what is installed
    ListInstalled,
    /// Lists newer versions, after the index was updated
    ListUpdates,
    /// Lists newer versions that the index knows
    ListUpdatesLocal,
    /// Installs packages by name
    RepoInstall,
    /// Installs package files
    FileInstall,
    /// Removes packages
    Remove,
}

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
enum ModuleError {
    #[error(transparent)]
    Provider(#[from] ProviderError),
    #[error(transparent)]
    Package(#[from] PackageError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error("a request holds at most {MAX_REQUEST_BYTES} bytes")]
    TooLong,
    #[error("no package was named")]
    NoPackage,
    #[error("name the architecture in the promise's architecture, not in the package's name")]
    QualifiedName,
}

/// Returns what a module prints for a command. `input` is all that came on standard input.
pub fn answer(command: Command, input: &[u8], provider: &str, host: Host<'_>) -> String {
    if command == Command::SupportsApiVersion {
        return "1\n".into();
    }
    let request = Request::parse(&String::from_utf8_lossy(input));
    let answered = if input.len() > MAX_REQUEST_BYTES {
        Err(ModuleError::TooLong)
    } else {
        carry_out(command, &request, provider, host)
    };
    answered.unwrap_or_else(|error| {
        let about = match (&error, command) {
            (ModuleError::Batch(error), _) => error.about,
            (_, Command::GetPackageData) => Some(0),
            _ => None,
        };
        complain(about.and_then(|index| request.records.get(index)), &error)
    })
}

fn carry_out(
    command: Command,
    request: &Request,
    provider: &str,
    host: Host<'_>,
) -> Result<String, ModuleError> {
    let batch = Batch::new(provider, request.options.clone(), host)?;
    let done = |()| String::new();
    match command {
        Command::SupportsApiVersion => Ok("1\n".into()),
        Command::GetPackageData => package_data(request.records.first(), &batch),
        Command::ListInstalled => Ok(list(&batch.installed()?)),
        Command::ListUpdates => Ok(list(&batch.updates(true)?)),
        Command::ListUpdatesLocal => Ok(list(&batch.updates(false)?)),
        Command::RepoInstall => Ok(batch.install(&request.wishes()).map(done)?),
        Command::FileInstall => Ok(batch.install_files(&request.wishes()).map(done)?),
        Command::Remove => Ok(batch.remove(&request.wishes()).map(done)?),
    }
}

/// Tells what a promise is about. A name from a repository gets neither version nor architecture:
/// those are the promise's own.
fn package_data(record: Option<&Record>, batch: &Batch<'_>) -> Result<String, ModuleError> {
    let wish = &record.ok_or(ModuleError::NoPackage)?.wish;
    if wish.name.starts_with('/') {
        let found = batch.open_file(wish)?;
        return Ok(format!("PackageType=file\n{}", entry(&found)));
    }
    batch.check_name(wish)?;
    // Lists hold plain names, so that the agent would never find this one there.
    if wish.name.contains(':') {
        return Err(ModuleError::QualifiedName);
    }
    Ok(format!("PackageType=repo\nName={}\n", wish.name))
}

fn list(instances: &[Instance]) -> String {
    instances.iter().map(entry).collect()
}

/// Returns the three lines of a package. The agent drops what has no architecture, and the word
/// for that is its own modules'.
fn entry(instance: &Instance) -> String {
    let arch = match instance.arch.as_str() {
        "" => "none",
        arch => arch,
    };
    let version = instance.whole_version();
    format!(
        "Name={}\nVersion={version}\nArchitecture={arch}\n",
        instance.name
    )
}

fn complain(record: Option<&Record>, error: &ModuleError) -> String {
    let mut text = String::new();
    if let Some(Record { key, wish }) = record {
        let parts = [
            (*key, &wish.name),
            ("Version", &wish.version),
            ("Architecture", &wish.arch),
        ];
        for (key, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(text, "{key}={}", on_one_line(value));
        }
    }
    let _ = writeln!(text, "ErrorMessage={}", on_one_line(&error.to_string()));
    text
}

/// Returns text that can't begin another line.
fn on_one_line(text: &str) -> String {
    let mend = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(mend).collect()
}
