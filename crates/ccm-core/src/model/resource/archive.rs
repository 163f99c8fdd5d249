//! Properties of archives: downloaded, verified, unpacked and optionally removed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Common, FieldVisitor, InvalidProperty, TemplateField, check_owner, check_path,
    check_present_or_absent, is_false, text,
};
use crate::model::secret::{Secret, redact_url, serialize_url};
use crate::model::text::{quote, url_scheme};

/// Properties of an archive.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Archive {
    #[serde(serialize_with = "serialize_url")]
    pub url: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Secret>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub username: String,
    #[serde(skip_serializing_if = "Secret::is_empty")]
    pub password: Secret,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub checksum: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub extract_parent: String,
    #[serde(skip_serializing_if = "is_false")]
    pub cleanup: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub creates: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub owner: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
}

/// Supported archive formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveFormat {
    Zip,
    TarGz,
    Tar,
}

impl ArchiveFormat {
    /// Returns the format for the suffix of a file name.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".zip") {
            Some(Self::Zip)
        } else if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else if name.ends_with(".tar") {
            Some(Self::Tar)
        } else {
            None
        }
    }

    /// Returns the format for the file name of a URL.
    pub(crate) fn from_url(url: &str) -> Option<Self> {
        Self::from_name(url_file_name(url))
    }
}

/// Returns the last segment of a URL's path; empty if there is none.
fn url_file_name(url: &str) -> &str {
    let (_, rest) = url_scheme(url).unwrap_or(("", url));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let path = match rest.strip_prefix("//") {
        Some(authority) => authority.find('/').and_then(|at| authority.get(at..)),
        None => Some(rest),
    };
    let path = path.unwrap_or_default().trim_end_matches('/');
    path.rsplit('/').next().unwrap_or_default()
}

impl fmt::Display for ArchiveFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Zip => "zip",
            Self::TarGz => "tar.gz",
            Self::Tar => "tar",
        })
    }
}

impl Archive {
    pub(super) fn validate(&self, common: &Common) -> Result<(), InvalidProperty> {
        let url_format = self.validate_url()?;
        let suffixes = "must end in .zip, .tar.gz, .tgz, or .tar";
        let Some(format) = ArchiveFormat::from_name(&common.name) else {
            return Err(InvalidProperty::new("name", format!("name {suffixes}")));
        };
        if format != url_format {
            let message = format!(
                "url and name must have the same archive type: url is {url_format}, name is {format}"
            );
            return Err(InvalidProperty::new("url", message));
        }
        check_present_or_absent(common)?;
        if self.cleanup && self.extract_parent.is_empty() {
            let message = "cleanup requires extract_parent to be set";
            return Err(InvalidProperty::new("cleanup", message));
        }
        if self.cleanup && self.creates.is_empty() {
            let message = "cleanup requires creates to be set";
            return Err(InvalidProperty::new("cleanup", message));
        }
        let text = "file path must be absolute";
        check_path("name", &common.name, text, text)?;
        if !self.creates.is_empty() {
            let text = "creates path must be absolute";
            check_path("creates", &self.creates, text, text)?;
        }
        if !self.extract_parent.is_empty() {
            let text = "extract_parent path must be absolute";
            check_path("extract_parent", &self.extract_parent, text, text)?;
        }
        check_owner(&self.owner, &self.group)
    }

    fn validate_url(&self) -> Result<ArchiveFormat, InvalidProperty> {
        let invalid = |message: &str| Err(InvalidProperty::new("url", message));
        if self.url.is_empty() {
            return invalid("url cannot be empty");
        }
        if let Some(problem) = url_problem(&self.url) {
            let url = quote(&redact_url(&self.url));
            return invalid(&format!("invalid url: parse {url}: {problem}"));
        }
        if url_scheme(&self.url).is_none() {
            return invalid("url must be absolute (include scheme like http:// or https://)");
        }
        let name = url_file_name(&self.url);
        if name.is_empty() || name == "." {
            return invalid("url must have a filename in the path");
        }
        match ArchiveFormat::from_name(name) {
            Some(format) => Ok(format),
            None => invalid("url filename must end in .zip, .tar.gz, .tgz, or .tar"),
        }
    }

    pub(super) fn visit_fields<E>(&mut self, visit: &mut FieldVisitor<'_, E>) -> Result<(), E> {
        text("Url", &mut self.url, visit)?;
        for (key, header) in &mut self.headers {
            let suffix = format!("[{key}]");
            visit("Headers", &suffix, TemplateField::Text(header.reveal_mut()))?;
        }
        text("Username", &mut self.username, visit)?;
        text("Password", self.password.reveal_mut(), visit)?;
        text("Checksum", &mut self.checksum, visit)?;
        text("ExtractParent", &mut self.extract_parent, visit)?;
        text("Creates", &mut self.creates, visit)?;
        text("Owner", &mut self.owner, visit)?;
        text("Group", &mut self.group, visit)
    }
}

/// Returns why a text is not a valid URL, if it is not.
fn url_problem(url: &str) -> Option<String> {
    if url.contains(|c: char| c.is_control() || c == ' ') {
        return Some("a space or control character in URL".into());
    }
    if url.starts_with(':') {
        return Some("missing protocol scheme".into());
    }
    let before_query = url.split(['?', '#']).next().unwrap_or_default();
    let is_escape = |digits: &str| {
        let mut pair = digits.bytes().take(2).filter(u8::is_ascii_hexdigit);
        pair.next().and(pair.next()).is_some()
    };
    if let Some(bad) = before_query.split('%').skip(1).find(|it| !is_escape(it)) {
        let shown: String = bad.chars().take(2).collect();
        return Some(format!(
            "invalid URL escape {}",
            quote(&format!("%{shown}"))
        ));
    }
    let (_, rest) = before_query.split_once("//")?;
    let authority = rest.split('/').next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let after_host = match host.strip_prefix('[') {
        None => host.find(':').and_then(|colon| host.get(colon..)),
        Some(address) => match address.split_once(']') {
            None => return Some("missing ']' in host".into()),
            Some((_, port)) => Some(port),
        },
    };
    let port = after_host.unwrap_or_default();
    let is_port = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if port.is_empty() || port.strip_prefix(':').is_some_and(is_port) {
        return None;
    }
    Some(format!("invalid port {} after host", quote(port)))
}
