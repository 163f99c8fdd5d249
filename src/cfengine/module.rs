//! Commands of the Package Module API, version 1: one request, one response.
//!
//! `cf-agent` treats unexpected lines as failures and discards the output of a module that exits
//! with an error. A response therefore contains protocol lines only; errors are `ErrorMessage` lines
//! after the package they refer to. Output of package managers is never passed through.

use std::fmt::Write as _;

use super::request::{Record, Request};
use ccm_core::resource::package::{Batch, BatchError, Instance, PackageError};
use ccm_core::resource::{Host, ProviderError};

/// Size limit of a request; `cf-agent` writes at most 64 KiB, the size of a pipe.
pub const MAX_REQUEST_BYTES: usize = 1024 * 1024;

/// Commands of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Command {
    /// Print the API version
    SupportsApiVersion,
    /// Determine whether a promise names a package file or a package
    GetPackageData,
    /// List installed packages
    ListInstalled,
    /// Update the package index and list available updates
    ListUpdates,
    /// List available updates without updating the index
    ListUpdatesLocal,
    /// Install packages by name
    RepoInstall,
    /// Install package files
    FileInstall,
    /// Remove packages
    Remove,
}

/// Error of a command.
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
    #[error("no package given")]
    NoPackage,
    #[error("name the architecture in the promise's architecture, not in the package's name")]
    QualifiedName,
}

/// Returns the response to a command. `input` is the whole standard input.
pub fn respond(command: Command, input: &[u8], provider: &str, host: Host<'_>) -> String {
    if command == Command::SupportsApiVersion {
        return "1\n".into();
    }
    let request = Request::parse(&String::from_utf8_lossy(input));
    let response = if input.len() > MAX_REQUEST_BYTES {
        Err(ModuleError::TooLong)
    } else {
        execute(command, &request, provider, host)
    };
    response.unwrap_or_else(|error| {
        let index = match (&error, command) {
            (ModuleError::Batch(error), _) => error.index,
            (_, Command::GetPackageData) => Some(0),
            _ => None,
        };
        error_lines(index.and_then(|index| request.records.get(index)), &error)
    })
}

fn execute(
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
        Command::RepoInstall => Ok(batch.install(&request.packages()).map(done)?),
        Command::FileInstall => Ok(batch.install_files(&request.packages()).map(done)?),
        Command::Remove => Ok(batch.remove(&request.packages()).map(done)?),
    }
}

/// Returns whether a promise refers to a package file or to a package in a repository. For the
/// latter, version and architecture are those of the promise and not repeated.
fn package_data(record: Option<&Record>, batch: &Batch<'_>) -> Result<String, ModuleError> {
    let package = &record.ok_or(ModuleError::NoPackage)?.package;
    if package.name.starts_with('/') {
        let found = batch.open_file(package)?;
        return Ok(format!("PackageType=file\n{}", entry(&found)));
    }
    batch.check_name(package)?;
    // Package lists contain plain names, so cf-agent would not find a qualified one.
    if package.name.contains(':') {
        return Err(ModuleError::QualifiedName);
    }
    Ok(format!("PackageType=repo\nName={}\n", package.name))
}

fn list(instances: &[Instance]) -> String {
    instances.iter().map(entry).collect()
}

/// Returns the three lines of a package. `cf-agent` drops packages without an architecture; its own
/// modules use `none`.
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

fn error_lines(record: Option<&Record>, error: &ModuleError) -> String {
    let mut text = String::new();
    if let Some(Record { key, package }) = record {
        let parts = [
            (*key, &package.name),
            ("Version", &package.version),
            ("Architecture", &package.arch),
        ];
        for (key, value) in parts.into_iter().filter(|(_, value)| !value.is_empty()) {
            let _ = writeln!(text, "{key}={}", on_one_line(value));
        }
    }
    let _ = writeln!(text, "ErrorMessage={}", on_one_line(&error.to_string()));
    text
}

/// Replaces control characters, so that the text stays on one line.
fn on_one_line(text: &str) -> String {
    let replace = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(replace).collect()
}
