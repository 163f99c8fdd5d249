//! `ccm template`: renders a template in the environment of a run.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::environment::{FactArgs, NatsArgs, environment, read_document};
use super::output::Console;
use super::{CliError, Verdict};
use ccm_core::engine::directory_of;
use ccm_core::system::files;
use ccm_template::engines::{self, Template};
use ccm_template::expand;
use ccm_template::expr::Cache;

/// Size limit of a template.
const MAX_TEMPLATE_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Template file, or - for standard input
    file: PathBuf,

    /// Template engine to use
    #[arg(long, value_enum, default_value_t = Engine::Expr)]
    engine: Engine,

    /// JSON or YAML file with data
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,

    #[command(flatten)]
    facts: FactArgs,

    #[command(flatten)]
    nats: NatsArgs,

    /// Do not read extra variables from the .env file
    #[arg(long)]
    no_read_env: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    /// Text with {{ expressions }}
    Expr,
    Jet,
    Go,
    Jinja,
}

pub(super) fn run(args: &Args, console: &mut Console) -> Result<Verdict, CliError> {
    let (text, name, directory) = read(&args.file)?;
    let mut env = environment(&directory, !args.no_read_env, &args.facts, &args.nats)?;
    if let Some(file) = &args.data {
        env.data = read_document(file)?;
    }
    let engine = match args.engine {
        Engine::Expr => {
            let text = std::str::from_utf8(&text)
                .map_err(|_| CliError::usage(format!("{name} is not UTF-8 text")))?;
            let rendered =
                expand::resolve_string(text, &env, &Cache::default()).map_err(|err| {
                    let diagnostic = err.diagnostic(&name, text);
                    CliError::failed(err)
                        .at(&name)
                        .with_diagnostics(vec![diagnostic])
                })?;
            console.print(&rendered);
            return Ok(Verdict::default());
        }
        Engine::Jet => ccm_template::Engine::Jet,
        Engine::Go => ccm_template::Engine::Go,
        Engine::Jinja => ccm_template::Engine::Jinja,
    };
    let template = Template {
        engine,
        name: &name,
        text: &text,
        left: "",
        right: "",
    };
    let rendered = engines::render(template, &env).map_err(|err| {
        let diagnostic = err.diagnostic(&name, &text);
        CliError::failed(err).with_diagnostics(vec![diagnostic])
    })?;
    console.print_bytes(&rendered);
    Ok(Verdict::default())
}

fn read(file: &Path) -> Result<(Vec<u8>, String, PathBuf), CliError> {
    if file == Path::new("-") {
        let mut text = Vec::new();
        std::io::stdin()
            .lock()
            .take(MAX_TEMPLATE_BYTES)
            .read_to_end(&mut text)
            .map_err(CliError::failed)?;
        return Ok((text, "input".into(), PathBuf::from(".")));
    }
    let text = files::read(file, MAX_TEMPLATE_BYTES).map_err(CliError::usage)?;
    let name = file.display().to_string();
    Ok((text, name, directory_of(file)))
}
