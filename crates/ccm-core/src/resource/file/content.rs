//! Wanted content of a file: written in the manifest, copied from a source, or rendered from a
//! template.

use std::cell::OnceCell;
use std::fmt;
use std::path::{Path, PathBuf};

use super::super::{Host, ResourceError};
use crate::model::resource::File;
use crate::model::text::clean_path;
use crate::system::Digest;
use crate::system::files::{self, Content};
use ccm_template::Engine;
use ccm_template::engines::{self, Template};

/// The maximum size of a template.
const MAX_TEMPLATE_BYTES: u64 = 16 * 1024 * 1024;

/// The rendered template of a file. It is rendered once, so that plan, diff, change and verification
/// see the same text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Rendered(OnceCell<Vec<u8>>);

impl fmt::Debug for Rendered {
    /// Shows no content, which may be secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Rendered")
    }
}

/// The wanted content.
pub(super) enum Wanted<'a> {
    Bytes(&'a [u8]),
    Source(PathBuf),
}

impl Wanted<'_> {
    pub(super) fn digest(&self) -> Result<Digest, ResourceError> {
        Ok(match self {
            Self::Bytes(bytes) => Digest::of(bytes),
            Self::Source(path) => files::sha256(path)?,
        })
    }

    pub(super) fn content(&self) -> Content<'_> {
        match self {
            Self::Bytes(bytes) => Content::Bytes(bytes),
            Self::Source(path) => Content::File(path),
        }
    }

    /// Returns the content as text for a diff; nothing if it is not text.
    pub(super) fn text(&self) -> Result<Option<String>, ResourceError> {
        Ok(match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            Self::Source(path) => super::content_of(path, true)?,
        })
    }
}

/// Returns the wanted content; nothing if it is not managed.
pub(super) fn wanted<'a>(
    file: &'a File,
    rendered: &'a Rendered,
    host: Host<'_>,
) -> Result<Option<Wanted<'a>>, ResourceError> {
    if !file.source.is_empty() {
        return Ok(Some(Wanted::Source(readable(&file.source, host)?)));
    }
    if !file.template.is_empty() {
        return Ok(Some(Wanted::Bytes(rendered.get(file, host)?)));
    }
    let content = file.content.as_deref();
    Ok(content.map(|content| Wanted::Bytes(content.as_bytes())))
}

/// Returns the path of a source or template, if reading it is permitted.
pub(super) fn readable(name: &str, host: Host<'_>) -> Result<PathBuf, ResourceError> {
    let path = host.working_dir.join(clean_path(name));
    check_read(&path, host)?;
    Ok(path)
}

/// Checks that the requester may read a file.
pub(super) fn check_read(path: &Path, host: Host<'_>) -> Result<(), ResourceError> {
    let permitted = host.env.check_read(path);
    permitted.map_err(ResourceError::SourceDenied)
}

impl Rendered {
    fn get(&self, file: &File, host: Host<'_>) -> Result<&[u8], ResourceError> {
        if let Some(rendered) = self.0.get() {
            return Ok(rendered);
        }
        let rendered = render(file, host)?;
        Ok(self.0.get_or_init(|| rendered))
    }
}

/// Renders the template of a file.
pub fn render(file: &File, host: Host<'_>) -> Result<Vec<u8>, ResourceError> {
    let path = readable(&file.template, host)?;
    let text = files::read(&path, MAX_TEMPLATE_BYTES)?;
    let template = Template {
        // The name was validated.
        engine: Engine::parse(&file.engine).unwrap_or(Engine::Jet),
        name: &file.template,
        text: &text,
        left: "",
        right: "",
    };
    engines::render(template, host.env).map_err(|cause| {
        let diagnostic = cause.diagnostic(&path.to_string_lossy(), &text);
        ResourceError::Template {
            cause: Box::new(cause),
            diagnostic: Box::new(diagnostic),
        }
    })
}
