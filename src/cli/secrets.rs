//! `ccm secrets`: encrypts values for nodes, and edits documents that contain them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum, ValueHint};

use super::environment::SecretKeyArgs;
use super::fleet::recipients;
use super::output::{Console, ask, print_error};
use super::{CliError, Verdict};
use ccm_core::run::secret_key;
use ccm_core::secrets::{self, DocumentSecretError, Identity, SealedType};
use ccm_core::system::files::{self, Attributes, Content, Durability, PrivateDir};
use ccm_core::system::runner::Passthrough;
use ccm_value::text::count_of;

/// Longest value, and longest document.
const MAX_TEXT: u64 = 8 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Encrypt a value for nodes and print it as ENC[age,…]
    ///
    /// The value is read from standard input, without the line break at its end.
    Encrypt(Box<EncryptArgs>),
    /// Edit the encrypted values of a document in $EDITOR
    ///
    /// Values are shown as DEC[NUMBER,TEXT]!; write DEC[new,TEXT]! for a new one. Values that are not
    /// changed keep their recipients, others are encrypted for the given ones.
    #[expect(rustdoc::broken_intra_doc_links, reason = "brackets of the help text")]
    Edit(Box<DocumentArgs>),
    /// Encrypt all values of a document for other recipients
    Rekey(Box<DocumentArgs>),
    /// Create a key, store it in a file and print the public key
    New {
        /// File to store the key in; must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the public key that values for this node are encrypted for
    Show(SecretKeyArgs),
}

#[derive(Debug, clap::Args)]
struct EncryptArgs {
    /// Type of the value
    #[arg(long = "type", value_enum, default_value_t = Type::Str)]
    kind: Type,

    #[command(flatten)]
    recipients: recipients::Args,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Type {
    Str,
    Int,
    Float,
    Bool,
}

#[derive(Debug, clap::Args)]
struct DocumentArgs {
    /// Document with encrypted values
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    #[command(flatten)]
    secret_key: SecretKeyArgs,

    #[command(flatten)]
    recipients: recipients::Args,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    match &args.command {
        Command::Encrypt(args) => encrypt(args, console)?,
        Command::Edit(args) => edit(args, console)?,
        Command::Rekey(args) => rekey(args, console)?,
        Command::New { file } => create(file, console)?,
        Command::Show(args) => show(args, console)?,
    }
    Ok(Verdict::default())
}

fn encrypt(args: &EncryptArgs, console: &Console) -> Result<(), CliError> {
    let recipients = args.recipients.recipients(console)?;
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_TEXT);
    input.read_to_string(&mut text).map_err(CliError::usage)?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let kind = match args.kind {
        Type::Str => SealedType::Str,
        Type::Int => SealedType::Int,
        Type::Float => SealedType::Float,
        Type::Bool => SealedType::Bool,
    };
    let sealed = secrets::seal(text, kind, &recipients).map_err(CliError::usage)?;
    console.print(&format!("{sealed}\n"));
    Ok(())
}

fn rekey(args: &DocumentArgs, console: &Console) -> Result<(), CliError> {
    let recipients = args.recipients.recipients(console)?;
    let keys = keys(&args.secret_key)?;
    let text = read(&args.file)?;
    let rewritten = secrets::rekey(&text, &keys, &recipients);
    let (rewritten, count) = rewritten.map_err(|err| at(err, &args.file))?;
    write(&args.file, &rewritten)?;
    let values = count_of(count, "value");
    let recipients = count_of(recipients.len(), "recipient");
    console.print(&format!("{values} encrypted for {recipients}\n"));
    Ok(())
}

/// Decrypts the values in a private directory, which is removed unless the edited text can't be stored.
fn edit(args: &DocumentArgs, console: &Console) -> Result<(), CliError> {
    let recipients = args.recipients.recipients(console)?;
    let keys = keys(&args.secret_key)?;
    let text = read(&args.file)?;
    let shown = secrets::decrypt_document(&text, &keys).map_err(|err| at(err, &args.file))?;
    let private = PrivateDir::create(&std::env::temp_dir(), "ccm-secrets-");
    let private = private.map_err(CliError::failed)?;
    let name = args.file.file_name().unwrap_or_default();
    let file = private.path().join(name);
    files::write_private(&file, shown.as_bytes(), Durability::Cached).map_err(CliError::failed)?;
    let attempt = || {
        open_editor(&file)?;
        let edited = read(&file)?;
        if edited == shown {
            console.print("nothing was changed\n");
            return Ok(());
        }
        let sealed = secrets::encrypt_document(&edited, &text, &keys, &recipients);
        write(&args.file, &sealed.map_err(|err| at(err, &args.file))?)
    };
    loop {
        let Err(err) = attempt() else { return Ok(()) };
        if read(&file).is_ok_and(|edited| edited == shown) {
            return Err(err);
        }
        print_error(&format!("ccm: error: {err}"));
        if !matches!(ask("Edit again?"), Ok(Some(true))) {
            let kept = private.keep().join(name);
            let error = format!("{} was not changed", args.file.display());
            return Err(CliError::failed(error).hint(format!(
                "the edited text is kept in {}, with decrypted values: remove it after use",
                kept.display()
            )));
        }
    }
}

fn open_editor(file: &Path) -> Result<(), CliError> {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    let editor = variable("VISUAL").or_else(|| variable("EDITOR"));
    let editor = editor.unwrap_or_else(|| "vi".into());
    let mut words = editor.split_whitespace().map(str::to_owned);
    let program = words.next().unwrap_or_default();
    let file = file.to_string_lossy().into_owned();
    let started = Passthrough {
        program,
        args: words.chain([file]).collect(),
        env: Vec::new(),
        cwd: None,
    };
    match started.run().map_err(CliError::failed)? {
        0 => Ok(()),
        code => Err(CliError::failed(format!(
            "the editor ended with exit code {code}: nothing was changed"
        ))),
    }
}

fn create(file: &Path, console: &Console) -> Result<(), CliError> {
    if files::inspect(file, false)
        .map_err(CliError::usage)?
        .is_some()
    {
        return Err(CliError::usage(format!(
            "{} already exists",
            file.display()
        )));
    }
    let keys = secret_key::load_or_create(file).map_err(CliError::failed)?;
    print_recipient(&keys, console);
    Ok(())
}

fn show(args: &SecretKeyArgs, console: &Console) -> Result<(), CliError> {
    print_recipient(&keys(args)?, console);
    Ok(())
}

fn print_recipient(keys: &[Identity], console: &Console) {
    if let Some(recipient) = secret_key::recipient(keys) {
        console.print(&format!("{recipient}\n"));
    }
}

fn keys(args: &SecretKeyArgs) -> Result<Vec<Identity>, CliError> {
    let file = args.file(None);
    let keys = secret_key::load(&file).map_err(CliError::usage)?;
    keys.ok_or_else(|| {
        CliError::usage(format!("no key in {}", file.display()))
            .hint("give one with --secret-key, or create it with ccm secrets new FILE")
    })
}

fn read(file: &Path) -> Result<String, CliError> {
    files::read_to_string(file, MAX_TEXT).map_err(CliError::usage)
}

/// Replaces the content of a document, with its owner and mode.
fn write(file: &Path, text: &str) -> Result<(), CliError> {
    let found = files::inspect(file, true).map_err(CliError::failed)?;
    let attributes = Attributes {
        mode: found.map(|it| it.mode),
        ..Attributes::default()
    };
    let content = Content::Bytes(text.as_bytes());
    files::store(file, content, &attributes, Durability::Complete)
        .map(drop)
        .map_err(CliError::failed)
}

fn at(error: DocumentSecretError, file: &Path) -> CliError {
    CliError::usage(error).at(file.display())
}
