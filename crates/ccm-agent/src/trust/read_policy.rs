//! Read policy: limits what templates may read for a signer with a policy.
//!
//! Without a policy templates read whatever the agent can. With one, every lookup function returns
//! an error unless a rule grants it, and errors no longer quote rendered text. The files of a
//! bundle can always be read by its own templates. The functions are replaced in the environment,
//! so template engines need no checks of their own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Requester;
use ccm_core::model::policy::{Lookup, PolicyRequest};
use ccm_template::Env;
use ccm_template::env::MayRead;
use ccm_template::secrets::{OpenSecret, Secrets};
use ccm_value::Value;

impl Requester {
    /// Reports whether a policy limits the requester.
    pub(crate) fn has_policy(&self) -> bool {
        self.policy.is_some()
    }

    /// Reports whether templates of this request may use a lookup.
    pub(crate) fn may_look_up(&self, policy_request: &PolicyRequest<'_>, lookup: Lookup) -> bool {
        match &self.policy {
            Some(policy) => policy.allows_lookup(policy_request, lookup),
            None => true,
        }
    }

    /// Returns an environment limited to what the requester may read. `bundle` is the directory of
    /// its own files.
    #[must_use]
    pub(crate) fn limit(
        &self,
        env: Env,
        policy_request: &PolicyRequest<'_>,
        bundle: Option<&Path>,
    ) -> Env {
        if !self.has_policy() {
            return env;
        }
        let is_denied = |lookup| !self.may_look_up(policy_request, lookup);
        let mut env = Env {
            hide_rendered: true,
            ..env
        };
        if is_denied(Lookup::Files) {
            let may_read = allow_below(bundle);
            env.may_read = Some(Arc::clone(&may_read));
            env.read_file = env.read_file.map(|read| -> ccm_template::env::ReadFile {
                Arc::new(move |path| may_read(path).and_then(|()| read(path)))
            });
        }
        if is_denied(Lookup::Kv) {
            env.kv_get = Some(Arc::new(|_, _| Err(Lookup::Kv.denial().into())));
        }
        if is_denied(Lookup::Registrations) {
            let missing = Lookup::Registrations.denial();
            env.registrations = Some(Arc::new(move |_| Err(missing.into())));
        }
        if is_denied(Lookup::Secrets) {
            let missing = Lookup::Secrets.denial();
            let denied: OpenSecret = Arc::new(move |_| Err(missing.into()));
            env.secrets = Secrets::new(denied.clone(), denied);
        }
        if is_denied(Lookup::Environment) {
            env.environ = Value::empty_map();
            env.environ_denied = Some(Lookup::Environment.denial());
        }
        env
    }
}

/// Permits files below one directory, without following links out of it.
fn allow_below(directory: Option<&Path>) -> MayRead {
    let root: Option<PathBuf> = directory.and_then(|directory| directory.canonicalize().ok());
    Arc::new(move |path| {
        let is_below = || {
            let real = path.canonicalize().ok()?;
            root.as_ref().map(|root| real.starts_with(root))
        };
        match is_below() {
            Some(true) => Ok(()),
            _ => Err(Lookup::Files.denial().into()),
        }
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests prepare files directly")]
mod tests {
    use super::*;
    use ccm_core::model::policy::Policy;
    use ccm_template::CallError;
    use ccm_value::document::parse;

    fn requester(policy: &str) -> Requester {
        Requester {
            name: "weak".into(),
            policy: Some(Arc::new(Policy::read(&parse(policy).unwrap()).unwrap())),
        }
    }

    #[test]
    fn encrypted_values_are_opened_with_a_grant_only() {
        let open: OpenSecret = Arc::new(|_| Ok("hunter2".into()));
        let env = Env {
            secrets: Secrets::new(open.clone(), open),
            ..Env::default()
        };
        let policy_request = PolicyRequest {
            verb: "apply",
            ..PolicyRequest::default()
        };
        let opened = |policy: &str| {
            let env = requester(policy).limit(env.clone(), &policy_request, None);
            env.secrets
                .open("ENC[age,x]")
                .map_err(|err| err.to_string())
        };
        assert_eq!(opened("{lookups: [secrets]}"), Ok("hunter2".into()));
        for policy in ["{}", "{lookups: [files, kv]}"] {
            assert_eq!(
                opened(policy),
                Err(Lookup::Secrets.denial().into()),
                "{policy}"
            );
        }
    }

    #[test]
    fn only_files_of_the_bundle_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("bundle")).unwrap();
        std::fs::create_dir(at("bundle-2")).unwrap();
        for name in ["secret", "bundle/own", "bundle-2/own"] {
            std::fs::write(at(name), name).unwrap();
        }
        std::os::unix::fs::symlink(at("secret"), at("bundle/link")).unwrap();
        let read = |requester: &Requester, name: &str| {
            let env = Env {
                read_file: Some(Arc::new(|path| {
                    std::fs::read_to_string(path).map_err(CallError::new)
                })),
                ..Env::default()
            };
            let policy_request = PolicyRequest {
                verb: "apply",
                ..PolicyRequest::default()
            };
            let env = requester.limit(env, &policy_request, Some(&at("bundle")));
            assert_eq!(
                env.check_read(&at(name)).is_ok(),
                env.read_file.as_ref().unwrap()(&at(name)).is_ok()
            );
            env.read_file.unwrap()(&at(name)).is_ok()
        };
        let (weak, granted) = (requester("{}"), requester("{lookups: [files]}"));
        for (name, expected) in [
            ("bundle/own", true),
            ("bundle/../bundle/own", true),
            ("bundle/link", false),
            ("bundle/../secret", false),
            ("bundle-2/own", false),
            ("secret", false),
        ] {
            assert_eq!(read(&weak, name), expected, "{name}");
            assert!(read(&granted, name), "{name}");
            assert!(read(&Requester::default(), name), "{name}");
        }
    }
}
