//! Rendering: a directory of templates, rendered into memory.
//!
//! Every regular file of the source is a template; file names are not. Directories named `_partials`
//! hold templates for the `render` function only. A file without delimiters is copied unchanged, so
//! that binary files may be among the templates. The `write` function adds a file to the result; the
//! target is neither read nor written here.
//!
//! Sizes, counts and nesting are limited. `compare` compares the result with the target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::ScaffoldError;
use super::error::FunctionError;
use crate::model::Value;
use crate::model::text::clean_path;
use crate::model::value::Map;
use crate::resource::walk::{Tree, WalkError, walk};
use crate::system::FileError;
use crate::system::files::{self, FileKind};
use ccm_template::engines::{RenderError, Template, render_on};
use ccm_template::env::Functions;
use ccm_template::{CallError, Engine};

/// The name of directories that are not rendered.
const PARTIALS: &str = "_partials";

/// The maximum number of files and directories in a source, and of rendered files.
const MAX_FILES: usize = 100_000;

/// The maximum size of a template or plain file.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The maximum total size of rendered files and partials.
const MAX_TOTAL_BYTES: u64 = 512 << 20;

/// The maximum number of partials rendered.
const MAX_PARTIALS: usize = 100_000;

/// The maximum nesting depth of partials.
const MAX_DEPTH: usize = 10;

/// The stack size of the render thread. Engines limit their nesting to fit a stack of 2 MiB; partials and
/// functions that render text nest whole engines.
const STACK_BYTES: usize = 64 << 20;

/// The mode of a file added by `write`.
const WRITTEN_MODE: u32 = 0o644;

/// The mode bits of a source file that its rendered file keeps; setuid, setgid and sticky are dropped.
const KEPT_BITS: u32 = 0o777;

/// Returns the variables for a template text; variables that the text does not mention may be left out.
pub type Variables = Arc<dyn Fn(&[u8]) -> Map + Send + Sync>;

/// The inputs of a rendering.
#[derive(Clone)]
pub struct RenderJob {
    /// The directory of templates.
    pub source: PathBuf,
    /// The target directory, used in error texts only.
    pub target: PathBuf,
    pub engine: Engine,
    /// The delimiters; both empty for those of the engine.
    pub left: String,
    pub right: String,
    /// Leaves out files that render to white space only.
    pub skip_empty: bool,
    /// The template functions besides `render` and `write`.
    pub functions: Functions,
    pub variables: Variables,
}

/// A rendered file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedFile {
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
}

/// All rendered files and directories, by path relative to the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub files: BTreeMap<String, RenderedFile>,
    pub directories: BTreeSet<String>,
}

/// Renders all templates of a source.
pub fn render(job: RenderJob) -> Result<Rendered, ScaffoldError> {
    std::thread::Builder::new()
        .name("scaffold".into())
        .stack_size(STACK_BYTES)
        .spawn(move || Renderer::open(job)?.run())
        .map_err(ScaffoldError::Thread)?
        .join()
        .unwrap_or(Err(ScaffoldError::Stopped))
}

/// State of a rendering in progress.
struct Renderer {
    job: RenderJob,
    tree: Tree,
    progress: Mutex<Progress>,
}

/// The result so far, and counters for the limits.
#[derive(Default)]
struct Progress {
    rendered: Rendered,
    bytes: u64,
    partials: usize,
    depth: usize,
}

impl Renderer {
    fn open(mut job: RenderJob) -> Result<Arc<Self>, ScaffoldError> {
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
        // All directories come first: `write` may add a file to a directory that sorts later.
        let mut templates = Vec::new();
        for (path, seen) in &self.tree {
            if is_partial(path, seen.kind) {
                continue;
            }
            match (seen.kind, path.to_str()) {
                (FileKind::Directory, Some(name)) => {
                    self.progress().rendered.directories.insert(name.into());
                }
                (FileKind::Regular, Some(name)) => templates.push((name, seen.mode & KEPT_BITS)),
                _ => {
                    let name = path.file_name().unwrap_or_default();
                    return Err(ScaffoldError::InvalidFile(name.to_string_lossy().into()));
                }
            }
        }
        for (name, mode) in templates {
            let content = self.render_file(name)?;
            if !(self.job.skip_empty && is_blank(&content)) {
                self.add_file(name, RenderedFile { content, mode })?;
            }
        }
        Ok(std::mem::take(&mut self.progress().rendered))
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock()
    }

    fn render_file(self: &Arc<Self>, name: &str) -> Result<Vec<u8>, ScaffoldError> {
        let text = self.read(name).map_err(ScaffoldError::Source)?;
        if !self.is_template(&text) {
            return Ok(text);
        }
        let variables = (self.job.variables)(variables_hint(&text));
        let dot = Value::from(variables.clone());
        let rendered = self.evaluate(name, &text, &variables, &dot);
        rendered.map_err(|cause| {
            let file = self.job.source.join(name);
            let diagnostic = cause.diagnostic(&file.to_string_lossy(), &text);
            ScaffoldError::Template {
                cause: cause.into(),
                diagnostic: diagnostic.into(),
            }
        })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, FileError> {
        files::read(&self.job.source.join(name), MAX_FILE_BYTES)
    }

    /// Reports whether a text contains template delimiters or comments.
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
        let RenderJob {
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
        let partial = move |args: &[Value]| renderer.render_partial(args).map_err(CallError::new);
        functions.insert("render", Arc::new(partial));
        let renderer = Arc::clone(self);
        let write = move |args: &[Value]| renderer.write(args).map_err(CallError::new);
        functions.insert("write", Arc::new(write));
        functions
    }

    /// The template function `render`: renders another file of the source with its own context.
    fn render_partial(self: &Arc<Self>, args: &[Value]) -> Result<Value, FunctionError> {
        let (name, context) = match args {
            [Value::Str(name)] => (name, None),
            [Value::Str(name), context] => (name, Some(context)),
            _ => return Err(FunctionError::RenderArguments),
        };
        let source = self.job.source.display();
        let path = relative_path(name).ok_or_else(|| FunctionError::OutsideSource {
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
            self.enter_partial()?;
            let content = self.evaluate_partial(&path, &text, context);
            self.progress().depth -= 1;
            content?
        } else {
            text
        };
        self.count_bytes(content.len())?;
        let content = String::from_utf8(content).map_err(|_| FunctionError::NotText(path))?;
        Ok(content.into())
    }

    fn enter_partial(&self) -> Result<(), FunctionError> {
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
        let mut variables = (self.job.variables)(variables_hint(text));
        let dot = match context {
            Some(context) => context.clone(),
            None => Value::from(variables.clone()),
        };
        // Jinja has no dot: the entries of a context become variables.
        if let (Engine::Jinja, Some(context)) = (self.job.engine, dot.as_map()) {
            let entries = context
                .iter()
                .map(|(key, value)| (key.clone(), value.clone()));
            variables.extend(entries);
        }
        self.evaluate(path, text, &variables, &dot)
    }

    /// The template function `write`: adds a file to the result.
    fn write(&self, args: &[Value]) -> Result<Value, FunctionError> {
        let [Value::Str(name), Value::Str(text)] = args else {
            return Err(FunctionError::WriteArguments);
        };
        let target = self.job.target.to_string_lossy();
        let full_path = clean_path(&format!("{target}/{name}"));
        let Some(path) = relative_path(name) else {
            return Err(FunctionError::OutsideTarget {
                path: full_path,
                target: self.job.target.clone(),
            });
        };
        if path == "." || self.has_directory(&path) {
            return Err(FunctionError::Directory {
                action: "open",
                path: full_path,
            });
        }
        if let Some((parent, _)) = path.rsplit_once('/')
            && !self.has_directory(parent)
        {
            return Err(FunctionError::NotFound(full_path));
        }
        let file = RenderedFile {
            content: text.as_bytes().into(),
            mode: WRITTEN_MODE,
        };
        self.add_file(&path, file)?;
        Ok("".into())
    }

    fn has_directory(&self, path: &str) -> bool {
        self.progress().rendered.directories.contains(path)
    }

    /// Adds a file to the result, replacing an earlier file of that name.
    fn add_file(&self, name: &str, file: RenderedFile) -> Result<(), ScaffoldError> {
        self.count_bytes(file.content.len())?;
        let files = &mut self.progress().rendered.files;
        if files.len() >= MAX_FILES {
            return Err(ScaffoldError::TooManyFiles {
                directory: self.job.target.clone(),
                limit: MAX_FILES,
            });
        }
        files.insert(name.into(), file);
        Ok(())
    }

    fn count_bytes(&self, bytes: usize) -> Result<(), ScaffoldError> {
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
    walk(source, MAX_FILES, true).map_err(|err| match err {
        WalkError::File(err) => ScaffoldError::Source(err),
        WalkError::TooMany => ScaffoldError::too_many(source, MAX_FILES),
    })
}

/// Reports whether a path is a directory of partials, or inside one.
fn is_partial(path: &Path, kind: FileKind) -> bool {
    let directory = match kind {
        FileKind::Directory => Some(path),
        _ => path.parent(),
    };
    directory.is_some_and(|directory| directory.iter().any(|name| name == PARTIALS))
}

/// Returns the text that decides which variables are collected. A template that calls `render` passes its
/// variables on, so it gets all of them.
fn variables_hint(text: &[u8]) -> &[u8] {
    if contains(text, "render") {
        b"facts"
    } else {
        text
    }
}

/// Returns a cleaned relative path, unless it leads out of its directory.
fn relative_path(name: &str) -> Option<String> {
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
