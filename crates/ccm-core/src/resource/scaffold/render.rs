//! Renders a directory of templates into memory.
//!
//! Every regular file of the source is a template; names are never templated. Directories named
//! `_partials` hold what only `render` reads. A file without delimiters passes byte by byte, so
//! pictures and archives may lie among the templates. Nothing is written here and the target is
//! never looked at: what `write` makes is one more file of the result.
//!
//! Sizes, counts and depths are bounded. Read [`super::compare`] next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ScaffoldError;
use super::error::FunctionError;
use super::tree::{Tree, WalkError, walk};
use crate::model::Value;
use crate::model::text::clean_path;
use crate::model::value::Map;
use crate::system::FileError;
use crate::system::files::{self, FileKind};
use ccm_template::engines::{RenderError, Template, render_on};
use ccm_template::env::Functions;
use ccm_template::{CallError, Engine};

/// Directories of this name are not rendered.
const PARTIALS: &str = "_partials";

/// How many files and directories a source may hold, and how many files may come of it.
const MAX_FILES: usize = 100_000;

/// The largest template or plain file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// How much all files, and all partials on the way to them, may come to.
const MAX_TOTAL_BYTES: u64 = 512 << 20;

/// How often partials may be rendered in all.
const MAX_PARTIALS: usize = 100_000;

/// How deep partials may render partials.
const MAX_DEPTH: usize = 10;

/// Engines bound their own nesting to what a thread's usual stack of 2 MiB holds; partials nest
/// whole engines, and so do the functions that render text.
const STACK_BYTES: usize = 64 << 20;

/// The mode of a file that a template made with `write`.
const WRITTEN_MODE: u32 = 0o644;

/// The bits of a source file that its rendered file keeps; no template makes a set-id file.
const KEPT_BITS: u32 = 0o777;

/// Returns the variables for a template of this text, which may leave out what it cannot name.
pub type Variables = Arc<dyn Fn(&[u8]) -> Map + Send + Sync>;

/// What to render, for where, and with what.
#[derive(Clone)]
pub struct Job {
    /// The directory of templates.
    pub source: PathBuf,
    /// Where the files will go; only errors name it.
    pub target: PathBuf,
    pub engine: Engine,
    /// Both delimiters, or two empty texts for the engine's own.
    pub left: String,
    pub right: String,
    /// Leaves out files that come out blank.
    pub skip_empty: bool,
    /// What templates may call beside `render` and `write`.
    pub functions: Functions,
    pub variables: Variables,
}

/// A file as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedFile {
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// All files and directories as they should be, by their path below the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub files: BTreeMap<String, RenderedFile>,
    pub directories: BTreeSet<String>,
}

/// Renders everything, or says what kept it from that.
pub fn render(job: Job) -> Result<Rendered, ScaffoldError> {
    std::thread::Builder::new()
        .name("scaffold".into())
        .stack_size(STACK_BYTES)
        .spawn(move || Renderer::open(job)?.run())
        .map_err(ScaffoldError::Thread)?
        .join()
        .unwrap_or(Err(ScaffoldError::Stopped))
}

/// One rendering on its way.
struct Renderer {
    job: Job,
    tree: Tree,
    progress: Mutex<Progress>,
}

/// What has been made, and what may still be.
#[derive(Default)]
struct Progress {
    made: Rendered,
    bytes: u64,
    partials: usize,
    depth: usize,
}

impl Renderer {
    fn open(mut job: Job) -> Result<Arc<Self>, ScaffoldError> {
        if job.left.is_empty() != job.right.is_empty() {
            return Err(ScaffoldError::OneDelimiter);
        }
        if job.left.is_empty() {
            let (left, right) = job.engine.delimiters();
            (job.left, job.right) = (left.into(), right.into());
        }
        let tree = source_tree(&job.source)?;
        Ok(Arc::new(Self {
            job,
            tree,
            progress: Mutex::default(),
        }))
    }

    fn run(self: &Arc<Self>) -> Result<Rendered, ScaffoldError> {
        // All directories come first: a template may write into one that is walked later.
        let mut templates = Vec::new();
        for (path, seen) in &self.tree {
            if is_partial(path, seen.kind) {
                continue;
            }
            match (seen.kind, path.to_str()) {
                (FileKind::Directory, Some(name)) => {
                    self.progress().made.directories.insert(name.into());
                }
                (FileKind::Regular, Some(name)) => templates.push((name, seen.mode & KEPT_BITS)),
                _ => {
                    let name = path.file_name().unwrap_or_default();
                    return Err(ScaffoldError::InvalidFile(name.to_string_lossy().into()));
                }
            }
        }
        for (name, mode) in templates {
            let content = self.file(name)?;
            if !(self.job.skip_empty && is_blank(&content)) {
                self.keep(name, RenderedFile { content, mode })?;
            }
        }
        Ok(std::mem::take(&mut self.progress().made))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(self: &Arc<Self>, name: &str) -> Result<Vec<u8>, ScaffoldError> {
        let text = self.read(name).map_err(ScaffoldError::Source)?;
        if !self.is_template(&text) {
            return Ok(text);
        }
        let variables = (self.job.variables)(probe(&text));
        let dot = Value::from(variables.clone());
        Ok(self.evaluate(name, &text, &variables, &dot)?)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, FileError> {
        files::read(&self.job.source.join(name), MAX_FILE_BYTES)
    }

    /// Reports whether an engine would find anything to do in a text.
    fn is_template(&self, text: &[u8]) -> bool {
        let marks: &[&str] = match self.job.engine {
            Engine::Go => &[],
            Engine::Jet => &["{*"],
            Engine::Jinja => &["{%", "{#"],
        };
        contains(text, &self.job.left) || marks.iter().any(|mark| contains(text, mark))
    }

    fn evaluate(
        self: &Arc<Self>,
        name: &str,
        text: &[u8],
        variables: &Map,
        dot: &Value,
    ) -> Result<Vec<u8>, RenderError> {
        let Job {
            engine,
            left,
            right,
            ..
        } = &self.job;
        let template = Template {
            engine: *engine,
            name,
            text,
            left,
            right,
        };
        render_on(template, variables, dot, &self.functions(), None)
    }

    fn functions(self: &Arc<Self>) -> Functions {
        let mut functions = self.job.functions.clone();
        let renderer = Arc::clone(self);
        let partial = move |args: &[Value]| renderer.partial(args).map_err(CallError::new);
        functions.insert("render", Arc::new(partial));
        let renderer = Arc::clone(self);
        let write = move |args: &[Value]| renderer.write(args).map_err(CallError::new);
        functions.insert("write", Arc::new(write));
        functions
    }

    /// The function `render`: another file of the source, seen with a context of its own.
    fn partial(self: &Arc<Self>, args: &[Value]) -> Result<Value, FunctionError> {
        let (name, context) = match args {
            [Value::Str(name)] => (name, None),
            [Value::Str(name), context] => (name, Some(context)),
            _ => return Err(FunctionError::RenderArguments),
        };
        let source = self.job.source.display();
        let path = below(name).ok_or_else(|| FunctionError::OutsideSource {
            name: name.to_string(),
            source_dir: self.job.source.clone(),
        })?;
        let directory = |path: String| FunctionError::Directory {
            action: "read",
            path,
        };
        match self.tree.get(Path::new(&path)).map(|seen| seen.kind) {
            Some(FileKind::Regular) => {}
            Some(FileKind::Directory) => return Err(directory(format!("{source}/{path}"))),
            Some(FileKind::Symlink | FileKind::Special) => {
                return Err(FunctionError::InvalidFile(path));
            }
            None if path == "." => return Err(directory(source.to_string())),
            None => return Err(FunctionError::NotFound(format!("{source}/{path}"))),
        }
        let text = self.read(&path)?;
        let content = if self.is_template(&text) {
            self.enter()?;
            let content = self.evaluate_partial(&path, &text, context);
            self.progress().depth -= 1;
            content?
        } else {
            text
        };
        self.spend(content.len())?;
        let content = String::from_utf8(content).map_err(|_| FunctionError::NotText(path))?;
        Ok(content.into())
    }

    fn enter(&self) -> Result<(), FunctionError> {
        let mut progress = self.progress();
        if progress.depth >= MAX_DEPTH {
            return Err(FunctionError::TooDeep(MAX_DEPTH));
        }
        if progress.partials >= MAX_PARTIALS {
            return Err(FunctionError::TooMany(MAX_PARTIALS));
        }
        progress.depth += 1;
        progress.partials += 1;
        Ok(())
    }

    fn evaluate_partial(
        self: &Arc<Self>,
        path: &str,
        text: &[u8],
        context: Option<&Value>,
    ) -> Result<Vec<u8>, RenderError> {
        let mut variables = (self.job.variables)(probe(text));
        let dot = match context {
            Some(context) => context.clone(),
            None => Value::from(variables.clone()),
        };
        // Jinja has no dot: what a context holds are variables there.
        if let (Engine::Jinja, Some(context)) = (self.job.engine, dot.as_map()) {
            let entries = context
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()));
            variables.extend(entries);
        }
        self.evaluate(path, text, &variables, &dot)
    }

    /// The function `write`: one more file, made by the template.
    fn write(&self, args: &[Value]) -> Result<Value, FunctionError> {
        let [Value::Str(name), Value::Str(text)] = args else {
            return Err(FunctionError::WriteArguments);
        };
        let target = self.job.target.to_string_lossy();
        let shown = clean_path(&format!("{target}/{name}"));
        let Some(path) = below(name) else {
            return Err(FunctionError::OutsideTarget {
                path: shown,
                target: self.job.target.clone(),
            });
        };
        if path == "." || self.has_directory(&path) {
            return Err(FunctionError::Directory {
                action: "open",
                path: shown,
            });
        }
        if let Some((parent, _)) = path.rsplit_once('/')
            && !self.has_directory(parent)
        {
            return Err(FunctionError::NotFound(shown));
        }
        let file = RenderedFile {
            content: text.as_bytes().into(),
            mode: WRITTEN_MODE,
        };
        self.keep(&path, file)?;
        Ok("".into())
    }

    fn has_directory(&self, path: &str) -> bool {
        self.progress().made.directories.contains(path)
    }

    /// Adds a file to the result, in place of one that a template made before.
    fn keep(&self, name: &str, file: RenderedFile) -> Result<(), ScaffoldError> {
        self.spend(file.content.len())?;
        let files = &mut self.progress().made.files;
        if files.len() >= MAX_FILES {
            return Err(ScaffoldError::TooManyFiles {
                directory: self.job.target.clone(),
                limit: MAX_FILES,
            });
        }
        files.insert(name.into(), file);
        Ok(())
    }

    fn spend(&self, bytes: usize) -> Result<(), ScaffoldError> {
        let mut progress = self.progress();
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        progress.bytes = progress.bytes.saturating_add(bytes);
        if progress.bytes > MAX_TOTAL_BYTES {
            return Err(ScaffoldError::TooLarge {
                directory: self.job.source.clone(),
                limit: MAX_TOTAL_BYTES,
            });
        }
        Ok(())
    }
}

fn source_tree(source: &Path) -> Result<Tree, ScaffoldError> {
    let seen = files::inspect(source, true).map_err(ScaffoldError::Source)?;
    match seen.map(|seen| seen.kind) {
        Some(FileKind::Directory) => {}
        None | Some(FileKind::Symlink) => return Err(ScaffoldError::NoSource(source.into())),
        Some(_) => {
            return Err(ScaffoldError::Source(FileError::NotADirectory(
                source.into(),
            )));
        }
    }
    walk(source, MAX_FILES).map_err(|err| match err {
        WalkError::File(err) => ScaffoldError::Source(err),
        WalkError::TooMany(err) => err,
    })
}

/// Reports whether something is a directory of partials, or in one.
fn is_partial(path: &Path, kind: FileKind) -> bool {
    let directory = match kind {
        FileKind::Directory => Some(path),
        _ => path.parent(),
    };
    directory.is_some_and(|directory| directory.iter().any(|name| name == PARTIALS))
}

/// Returns the text that decides which variables are gathered: a template that renders others
/// hands its own on, and they may name anything.
fn probe(text: &[u8]) -> &[u8] {
    if contains(text, "render") {
        b"facts"
    } else {
        text
    }
}

/// Returns a path below a directory, cleaned, unless it leads out of there.
fn below(name: &str) -> Option<String> {
    let clean = clean_path(&format!("./{name}"));
    (clean != ".." && !clean.starts_with("../")).then_some(clean)
}

fn contains(text: &[u8], mark: &str) -> bool {
    text.windows(mark.len().max(1))
        .any(|window| window == mark.as_bytes())
}

fn is_blank(content: &[u8]) -> bool {
    std::str::from_utf8(content).is_ok_and(|text| text.trim().is_empty())
}
