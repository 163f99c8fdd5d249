//! Secrets in templates that are rendered when a resource is applied: those of a file and of a scaffold.
//!
//! Templates are rendered a second time with placeholders in place of secrets. If the results differ, the
//! resource depends on a secret, whatever functions the template uses.

use super::scaffold::ScaffoldError;
use super::{Host, ResourceError, file, scaffold};
use crate::model::resource::{Properties, Resource};
use ccm_template::Env;

/// Reports whether a resource has templates that are rendered when it is applied.
pub fn has_templates(resource: &Resource) -> bool {
    match &resource.properties {
        Properties::File(file) => !file.template.is_empty(),
        Properties::Scaffold(scaffold) => !scaffold.source.is_empty(),
        _ => false,
    }
}

/// Reports whether the templates of a resource render a secret. Names of files must not depend on one,
/// because events show them.
pub fn renders_secret(resource: &Resource, host: Host<'_>) -> Result<bool, ResourceError> {
    let Some(redacted) = host.env.redacted() else {
        return Ok(false);
    };
    match &resource.properties {
        Properties::File(file) if !file.template.is_empty() => {
            let results = render_twice(host, &redacted, |host| file::render(file, host));
            Ok(results.is_some_and(|(with, without)| with != without))
        }
        Properties::Scaffold(scaffold) if !scaffold.source.is_empty() => {
            let render = |host: Host<'_>| Ok(scaffold::render_files(resource, scaffold, host)?);
            let Some((with, without)) = render_twice(host, &redacted, render) else {
                return Ok(false);
            };
            if let (Ok(with), Ok(without)) = (&with, &without)
                && !with.files.keys().eq(without.files.keys())
            {
                return Err(ScaffoldError::SecretName.into());
            }
            Ok(with != without)
        }
        _ => Ok(false),
    }
}

/// A result, or the text of its error.
type Shown<T> = Result<T, String>;

/// Returns what is rendered with secrets and without them; nothing if there is no secret.
fn render_twice<T>(
    host: Host<'_>,
    redacted: &Env,
    render: impl Fn(Host<'_>) -> Result<T, ResourceError>,
) -> Option<(Shown<T>, Shown<T>)> {
    let shown = |host| render(host).map_err(|err| err.to_string());
    let secrets = &host.env.secrets;
    let opened = secrets.count();
    let with = shown(host);
    if !host.env.has_secrets() && secrets.count() == opened {
        return None;
    }
    let env = redacted;
    Some((with, shown(Host { env, ..host })))
}
